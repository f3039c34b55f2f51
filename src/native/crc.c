/* CRC-32C: by the processor where it can, else eight bytes at a time by tables.
 *
 * The processor can begin a word each cycle but has its sum only three cycles later. So three
 * stretches are summed beside each other, and joined: a sum is linear, what a stretch adds is its
 * sum moved past as many zeros as there are bytes behind it. That takes two thirds of the time
 * from whatever is a few times longer than the stretches.
 */
#include "native.h"

#include <string.h>

#define POLYNOMIAL 0x82F63B78u

typedef uint32_t Update(uint32_t crc, const uint8_t *data, size_t size);

/* What the byte at place n of eight adds, with as many zeros behind it as there are places left. */
static uint32_t tables[8][256];

static void fill_tables(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t value = i;
        for (int bit = 0; bit < 8; bit++)
            value = (value >> 1) ^ (POLYNOMIAL & (0 - (value & 1)));
        tables[7][i] = value;
    }
    for (int place = 7; place-- > 0;) {
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t value = tables[place + 1][i];
            tables[place][i] = (value >> 8) ^ tables[7][value & 0xFF];
        }
    }
}

static uint32_t by_tables(uint32_t crc, const uint8_t *data, size_t size)
{
    for (; size >= 8; size -= 8, data += 8) {
        crc = tables[0][data[0] ^ (crc & 0xFF)] ^ tables[1][data[1] ^ (crc >> 8 & 0xFF)] ^
              tables[2][data[2] ^ (crc >> 16 & 0xFF)] ^ tables[3][data[3] ^ crc >> 24] ^
              tables[4][data[4]] ^ tables[5][data[5]] ^ tables[6][data[6]] ^ tables[7][data[7]];
    }
    while (size--)
        crc = (crc >> 8) ^ tables[7][(crc ^ *data++) & 0xFF];
    return crc;
}

#if defined(__x86_64__)

#define ABLE __builtin_cpu_supports("sse4.2")
#define TARGET __attribute__((target("sse4.2")))
#define ADD_WORD(sum, word) __builtin_ia32_crc32di(sum, word)
#define ADD_BYTE(crc, byte) __builtin_ia32_crc32qi(crc, byte)
typedef uint64_t Sum;

#elif defined(__aarch64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__

#if defined(__ARM_FEATURE_CRC32)
#define ABLE true
#elif defined(__linux__)
#include <sys/auxv.h>
#define ABLE (getauxval(AT_HWCAP) >> 7 & 1) /* HWCAP_CRC32 */
#else
#define ABLE false
#endif
#define TARGET

/* The assembler is told of the instructions, the compiler need not know that there are such. */
static inline uint32_t add_word(uint32_t crc, uint64_t word)
{
    __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
    return crc;
}

static inline uint32_t add_byte(uint32_t crc, uint8_t byte)
{
    __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"((uint32_t)byte));
    return crc;
}

#define ADD_WORD(sum, word) add_word(sum, word)
#define ADD_BYTE(crc, byte) add_byte(crc, byte)
typedef uint32_t Sum;

#endif

#if defined(ABLE)
#define STRETCH 512

/* A sum after STRETCH zeros, by the four bytes of the sum before them. */
static uint32_t past_zeros[4][256];

static uint32_t move_past(uint32_t crc)
{
    return past_zeros[0][crc & 0xFF] ^ past_zeros[1][crc >> 8 & 0xFF] ^
           past_zeros[2][crc >> 16 & 0xFF] ^ past_zeros[3][crc >> 24];
}

static void fill_past_zeros(void)
{
    static const uint8_t zeros[STRETCH];
    for (int place = 0; place < 4; place++) {
        for (uint32_t i = 1; i < 256; i++) {
            uint32_t *of = past_zeros[place], rest = i & (i - 1);
            of[i] = rest ? of[rest] ^ of[i ^ rest] : by_tables(i << 8 * place, zeros, STRETCH);
        }
    }
}

TARGET static uint32_t by_processor(uint32_t crc, const uint8_t *data, size_t size)
{
    /* As wide as the words: a narrower sum would have to be widened for each of them. */
    Sum sum = crc;
    for (; size >= 3 * STRETCH; size -= 3 * STRETCH, data += 3 * STRETCH) {
        Sum second = 0, third = 0;
        for (size_t at = 0; at < STRETCH; at += 8) {
            uint64_t words[3];
            memcpy(&words[0], data + at, 8);
            memcpy(&words[1], data + at + STRETCH, 8);
            memcpy(&words[2], data + at + 2 * STRETCH, 8);
            sum = ADD_WORD(sum, words[0]);
            second = ADD_WORD(second, words[1]);
            third = ADD_WORD(third, words[2]);
        }
        sum = move_past(move_past((uint32_t)sum) ^ (uint32_t)second) ^ (uint32_t)third;
    }
    for (; size >= 8; size -= 8, data += 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        sum = ADD_WORD(sum, word);
    }
    crc = (uint32_t)sum;
    while (size--)
        crc = ADD_BYTE(crc, *data++);
    return crc;
}
#endif

static Update *update = by_tables;

void prepare_crc32c(void)
{
    fill_tables();
#if defined(ABLE)
    if (ABLE) {
        fill_past_zeros();
        update = by_processor;
    }
#endif
}

uint32_t crc32c(const uint8_t *data, size_t size)
{
    return ~update(~0u, data, size);
}

PyObject *crc32c_both_ways(PyObject *Py_UNUSED(module), PyObject *argument)
{
    Py_buffer data;
    if (PyObject_GetBuffer(argument, &data, PyBUF_SIMPLE) < 0)
        return NULL;
    Cursor all = cursor_over(&data);
    unsigned long chosen = crc32c(all.at, (size_t)data.len);
    unsigned long portable = (uint32_t)~by_tables(~0u, all.at, (size_t)data.len);
    PyBuffer_Release(&data);
    return Py_BuildValue("(kkO)", chosen, portable, update == by_tables ? Py_False : Py_True);
}
