/* A batch of version 2 as it is on the wire and on the disk: where the fields of its header lie. All
 * numbers are big-endian. `scriba.records.header` says the same to Python. */
#ifndef SCRIBA_NATIVE_LAYOUT_H
#define SCRIBA_NATIVE_LAYOUT_H

#include "native.h"

enum {
    BASE_OFFSET_AT = 0,
    LENGTH_AT = 8, /* of what follows it */
    LEADER_EPOCH_AT = 12,
    MAGIC_AT = 16,
    CRC_AT = 17,
    ATTRIBUTES_AT = 21,
    LAST_DELTA_AT = 23,
    BASE_TIMESTAMP_AT = 27,
    MAX_TIMESTAMP_AT = 35,
    PRODUCER_ID_AT = 43,
    PRODUCER_EPOCH_AT = 51,
    BASE_SEQUENCE_AT = 53,
    COUNT_AT = 57,
    HEADER_SIZE = 61,

    LOG_OVERHEAD = LEADER_EPOCH_AT, /* what the length does not count */
    CRC_START = ATTRIBUTES_AT,      /* from where on the checksum covers everything */
    BATCH_MAGIC = 2,
};

/* Attributes. */
enum {
    CODEC_MASK = 0x07,
    LZ4 = 0x03, /* of the codecs */
    LOG_APPEND_TIME = 0x08,
    TRANSACTIONAL = 0x10,
    CONTROL = 0x20,
    DELETE_HORIZON = 0x40,
};

/* Numbers of a header are signed, the checksum excepted. */
static inline int64_t int64_at(const uint8_t *at)
{
    return (int64_t)big_endian(at, 8);
}

static inline int32_t int32_at(const uint8_t *at)
{
    return (int32_t)big_endian(at, 4);
}

static inline int16_t int16_at(const uint8_t *at)
{
    return (int16_t)big_endian(at, 2);
}

typedef struct {
    int64_t size;
    int64_t base_offset;
    int64_t last_offset;
} Extent;

/* Whether the header here is that of a batch which fits into `room` and goes on from `next_offset`. */
static inline bool batch_fits(const uint8_t *at, int64_t room, int64_t next_offset, Extent *extent)
{
    int64_t delta = int32_at(at + LAST_DELTA_AT);
    extent->size = (int64_t)int32_at(at + LENGTH_AT) + LOG_OVERHEAD;
    extent->base_offset = int64_at(at + BASE_OFFSET_AT);
    extent->last_offset = wrapping_sum(extent->base_offset, delta);
    return at[MAGIC_AT] == BATCH_MAGIC && extent->size >= HEADER_SIZE && extent->size <= room &&
           delta >= 0 && extent->base_offset >= 0 && extent->base_offset >= next_offset &&
           extent->base_offset < INT64_MAX - delta;
}

#endif
