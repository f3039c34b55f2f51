/* CRC-32C, by the processor where it can, else by a table. */
#include "map.h"

#include <string.h>

#define POLYNOMIAL 0x82F63B78u

static uint32_t by_table(uint32_t crc, const uint8_t *data, size_t size)
{
    static uint32_t table[256];
    if (table[1] == 0) {
        /* Filled by whoever comes first; a second one writes the same. */
        for (uint32_t i = 256; i-- > 0;) {
            uint32_t value = i;
            for (int bit = 0; bit < 8; bit++)
                value = (value >> 1) ^ (POLYNOMIAL & (0 - (value & 1)));
            table[i] = value;
        }
    }
    while (size--)
        crc = (crc >> 8) ^ table[(crc ^ *data++) & 0xFF];
    return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t by_processor(uint32_t crc, const uint8_t *data,
                                                               size_t size)
{
    uint64_t wide = crc;
    for (; size >= 8; size -= 8, data += 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        wide = __builtin_ia32_crc32di(wide, word);
    }
    crc = (uint32_t)wide;
    while (size--)
        crc = __builtin_ia32_crc32qi(crc, *data++);
    return crc;
}
#endif

uint32_t crc32c(const uint8_t *data, size_t size)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2"))
        return ~by_processor(~0u, data, size);
#endif
    return ~by_table(~0u, data, size);
}
