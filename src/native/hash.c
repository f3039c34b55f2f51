/* Hashes of keys: SipHash for the map of offsets, murmur2 for the choice of a partition. */
#include "native.h"

/* ---- SipHash-2-4 with 128 bits, by Aumasson and Bernstein ---- */

static inline uint64_t little_endian(const uint8_t *data, size_t size)
{
    uint64_t word = 0;
    for (size_t i = 0; i < size; i++)
        word |= (uint64_t)data[i] << (8 * i);
    return word;
}

void read_seed(uint64_t words[2], const char *seed)
{
    words[0] = little_endian((const uint8_t *)seed, 8);
    words[1] = little_endian((const uint8_t *)seed + 8, 8);
}

static inline uint64_t rotated(uint64_t word, unsigned bits)
{
    return word << bits | word >> (64 - bits);
}

static inline void sip_rounds(uint64_t v[4], int rounds)
{
    while (rounds-- > 0) {
        v[0] += v[1];
        v[2] += v[3];
        v[1] = rotated(v[1], 13) ^ v[0];
        v[3] = rotated(v[3], 16) ^ v[2];
        v[0] = rotated(v[0], 32) + v[3];
        v[2] += v[1];
        v[1] = rotated(v[1], 17) ^ v[2];
        v[3] = rotated(v[3], 21) ^ v[0];
        v[2] = rotated(v[2], 32);
    }
}

Hash siphash(const uint64_t seed[2], const uint8_t *data, size_t size)
{
    uint64_t v[4] = {
        seed[0] ^ 0x736f6d6570736575,
        seed[1] ^ 0x646f72616e646f6d ^ 0xee,
        seed[0] ^ 0x6c7967656e657261,
        seed[1] ^ 0x7465646279746573,
    };
    const uint8_t *last = data + size / 8 * 8;
    for (; data < last; data += 8) {
        uint64_t word = little_endian(data, 8);
        v[3] ^= word;
        sip_rounds(v, 2);
        v[0] ^= word;
    }
    uint64_t word = (uint64_t)size << 56 | little_endian(data, size % 8);
    v[3] ^= word;
    sip_rounds(v, 2);
    v[0] ^= word;
    v[2] ^= 0xee;
    sip_rounds(v, 4);
    Hash hash = {.low = v[0] ^ v[1] ^ v[2] ^ v[3]};
    v[1] ^= 0xdd;
    sip_rounds(v, 4);
    hash.high = v[0] ^ v[1] ^ v[2] ^ v[3];
    return hash;
}

PyObject *siphash_digest(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *seed, *data;
    Py_ssize_t seed_size, size;
    if (!PyArg_ParseTuple(args, "y#y#:siphash", &seed, &seed_size, &data, &size))
        return NULL;
    if (seed_size != SEED_BYTES)
        return PyErr_Format(PyExc_ValueError, "the seed has %d bytes", SEED_BYTES);
    uint64_t words[2];
    read_seed(words, seed);
    Hash hash = siphash(words, (const uint8_t *)data, (size_t)size);
    uint8_t digest[16];
    for (int i = 0; i < 8; i++) {
        digest[i] = (uint8_t)(hash.low >> (8 * i));
        digest[8 + i] = (uint8_t)(hash.high >> (8 * i));
    }
    return PyBytes_FromStringAndSize((const char *)digest, sizeof(digest));
}

/* ---- MurmurHash2 of 32 bits, by Appleby, with the seed of Kafka's clients ---- */

uint32_t murmur2_of(Cursor cursor)
{
    const uint32_t factor = 0x5bd1e995;
    uint32_t hash = 0x9747b28c ^ (uint32_t)(cursor.end - cursor.at);
    for (; cursor.end - cursor.at >= 4; cursor.at += 4) {
        uint32_t word = (uint32_t)little_endian(cursor.at, 4) * factor;
        hash = hash * factor ^ (word ^ word >> 24) * factor;
    }
    if (cursor.at < cursor.end)
        hash = (hash ^ (uint32_t)little_endian(cursor.at, (size_t)(cursor.end - cursor.at))) * factor;
    hash = (hash ^ hash >> 13) * factor;
    return hash ^ hash >> 15;
}

PyObject *murmur2(PyObject *Py_UNUSED(module), PyObject *key)
{
    Py_buffer view;
    if (PyObject_GetBuffer(key, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    uint32_t hash = murmur2_of(cursor_over(&view));
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLong(hash);
}
