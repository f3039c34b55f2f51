/* A batch of version 2 as it is on the wire and on the disk: where the fields of its header lie. All
 * numbers are big-endian. `scriba.records.header` says the same to Python. */
#ifndef SCRIBA_NATIVE_LAYOUT_H
#define SCRIBA_NATIVE_LAYOUT_H

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

#endif
