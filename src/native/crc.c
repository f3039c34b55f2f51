/* CRC-32C: of a few bytes by the processor's instructions, of more by the library `crc32c`.
 *
 * The library is faster from a few kilobytes on, since it sums several stretches beside each other,
 * and does without such instructions where there are none. But a call of it takes a view and two
 * calls of Python, which is longer than what most small batches take to be summed.
 */
#include "native.h"

#include <string.h>

#define FEW_BYTES 2048

#if defined(__x86_64__)

#define ABLE __builtin_cpu_supports("sse4.2")
#define TARGET __attribute__((target("sse4.2")))
#define ADD_WORD(sum, word) __builtin_ia32_crc32di(sum, word)
#define ADD_BYTE(crc, byte) __builtin_ia32_crc32qi(crc, byte)
typedef uint64_t Sum; /* as wide as the words: a narrower one would be widened for each of them */

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

static bool able; /* whether the processor has the instructions */

void prepare_crc32c(void)
{
#if defined(ABLE)
    able = ABLE;
#endif
}

#if defined(ABLE)
TARGET static uint32_t by_processor(const uint8_t *data, size_t size)
{
    Sum sum = ~0u;
    for (; size >= 8; size -= 8, data += 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        sum = ADD_WORD(sum, word);
    }
    uint32_t crc = (uint32_t)sum;
    while (size--)
        crc = ADD_BYTE(crc, *data++);
    return ~crc;
}
#endif

bool crc32c(const State *state, const uint8_t *data, Py_ssize_t size, uint32_t *crc)
{
#if defined(ABLE)
    if (able && size <= FEW_BYTES) {
        *crc = by_processor(data, (size_t)size);
        return true;
    }
#endif
    PyObject *view = PyMemoryView_FromMemory((char *)data, size, PyBUF_READ);
    PyObject *found = view ? PyObject_CallFunctionObjArgs(state->crc32c, view, NULL) : NULL;
    unsigned long number = found ? PyLong_AsUnsignedLong(found) : 0;
    Py_XDECREF(view);
    Py_XDECREF(found);
    *crc = (uint32_t)number;
    return found != NULL && (number != (unsigned long)-1 || PyErr_Occurred() == NULL);
}

PyObject *crc32c_of(PyObject *module, PyObject *argument)
{
    Py_buffer data;
    if (PyObject_GetBuffer(argument, &data, PyBUF_SIMPLE) < 0)
        return NULL;
    uint32_t crc;
    bool done = crc32c(PyModule_GetState(module), cursor_over(&data).at, data.len, &crc);
    PyBuffer_Release(&data);
    return done ? Py_BuildValue("(kO)", (unsigned long)crc, able ? Py_True : Py_False) : NULL;
}
