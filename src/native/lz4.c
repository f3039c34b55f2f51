/* check_lz4: judges the records of a batch while it unpacks them, and keeps none.
 *
 * They are unpacked into a window, a block or as much as fits at a time, and judged there while they
 * are still in the processor's cache; the next piece overwrites them. The window is the only
 * memory that this takes, and it is used again, so that no page of it is ever fresh.
 *
 * Only frames as Kafka's own clients write them are read here: independent blocks without
 * checksums of their own. For those and for whatever is wrong with a frame the answer is None, and
 * the caller asks the library that reads all of them. A checksum of the content is stepped over, as
 * Kafka does: the batch has one that covers these bytes.
 */
#include "native.h"

#include <stdlib.h>
#include <string.h>

#define MAGIC 0x184D2204u
#define FARTHEST 65535 /* how far back a match may reach */
#define WINDOW (FARTHEST + 1 + (64 << 10))
#define STRIDE 16
#define MARGIN (4 * STRIDE) /* a token, short literals and a short match never need more */
#define SLACK (2 * STRIDE)  /* copies go in strides and may pass the end of the window by one */
#define LONG_FRAME_BYTES (64 << 10) /* from here on other threads may run meanwhile */
#define LONG_OUTPUT_BYTES (4 << 20) /* or if it may grow to so much: a few kilobytes can */

enum { CONTENT_CHECKSUM = 0x04, CONTENT_SIZE = 0x08, BLOCK_CHECKSUM = 0x10, INDEPENDENT = 0x20 };

typedef struct {
    Source source;
    Cursor in;                /* the frame */
    const uint8_t *block_end; /* of the block that is being unpacked, or NULL */
    uint8_t *window;
    uint8_t *out;       /* where the next byte goes */
    size_t literals;    /* what is left to copy of a sequence that did not fit */
    size_t match;
    size_t offset;
    int token;          /* of a sequence whose match is still to be read, or -1 */
    int64_t block_room; /* what the block may still grow by */
    int64_t block_most;
    int64_t left;       /* what the frame may still grow by */
    bool bad;
} Frame;

static uint32_t little32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* ---- the start of a frame ---- */

#define PRIME1 2654435761u
#define PRIME2 2246822519u
#define PRIME3 3266489917u
#define PRIME4 668265263u
#define PRIME5 374761393u

static uint32_t rotated(uint32_t value, int bits)
{
    return value << bits | value >> (32 - bits);
}

/* xxHash32 of fewer than 16 bytes, which is all that a frame's descriptor has. */
static uint32_t short_xxh32(const uint8_t *at, size_t size)
{
    uint32_t hash = PRIME5 + (uint32_t)size;
    for (; size >= 4; at += 4, size -= 4)
        hash = rotated(hash + little32(at) * PRIME3, 17) * PRIME4;
    for (; size; at++, size--)
        hash = rotated(hash + *at * PRIME5, 11) * PRIME1;
    hash = (hash ^ hash >> 15) * PRIME2;
    hash = (hash ^ hash >> 13) * PRIME3;
    return hash ^ hash >> 16;
}

/* Whether it is a frame for us; moves behind its descriptor. */
static bool read_descriptor(Frame *frame)
{
    Cursor *in = &frame->in;
    if (in->end - in->at < 7 || little32(in->at) != MAGIC)
        return false;
    const uint8_t *start = in->at + 4;
    unsigned flags = start[0], sizes = start[1];
    if ((flags & ~(unsigned)(CONTENT_SIZE | CONTENT_CHECKSUM)) != (0x40 | INDEPENDENT) ||
        (sizes & 0x8F) || sizes >> 4 < 4)
        return false;
    size_t size = flags & CONTENT_SIZE ? 10 : 2;
    if ((size_t)(in->end - start) <= size || start[size] != (uint8_t)(short_xxh32(start, size) >> 8))
        return false;
    frame->block_most = (int64_t)1 << (8 + 2 * (sizes >> 4));
    in->at = start + size + 1;
    return true;
}

/* ---- sequences: literals, then a match with what came before ---- */

/* Adds the bytes that continue a length; false where the block ends first. */
static inline bool read_length(const uint8_t **at, const uint8_t *end, size_t *length)
{
    uint8_t byte;
    do {
        if (*at == end)
            return false;
        byte = *(*at)++;
        *length += byte;
    } while (byte == 255);
    return true;
}

/* Copies in strides that may pass the end; both sides have room for that. */
static inline void copy(uint8_t *out, const uint8_t *from, size_t size)
{
    uint8_t *end = out + size;
    do {
        memcpy(out, from, STRIDE);
        out += STRIDE, from += STRIDE;
    } while (out < end);
}

/* Copies a match that may overlap itself, in strides that may pass its end. */
static inline void copy_match(uint8_t *out, size_t offset, size_t size)
{
    const uint8_t *from = out - offset;
    if (offset >= STRIDE) {
        copy(out, from, size);
        return;
    }
    uint8_t *end = out + size;
    /* A short pattern is repeated until eight bytes of it can be copied at once. */
    size_t step = offset;
    for (int i = 0; i < STRIDE; i++)
        out[i] = from[i];
    while (step < 8)
        step += offset;
    for (out += STRIDE; out < end; out += 8)
        memcpy(out, out - step, 8);
}

/* Unpacks sequences as long as none can reach the end of the block or of the window unforeseen.
 *
 * False if one is broken. One that it has begun but cannot end is left to `unpack_one`. */
static bool unpack_most(Frame *frame)
{
    const uint8_t *in = frame->in.at, *const end = frame->block_end;
    uint8_t *out = frame->out, *const full = frame->window + WINDOW;
    while (end - in > MARGIN && full - out > MARGIN) {
        int token = *in++;
        size_t literals = (size_t)token >> 4, match = (size_t)(token & 15) + 4;
        if (literals < 15) {
            memcpy(out, in, STRIDE);
        } else {
            if (!read_length(&in, end, &literals))
                return false;
            if (literals > (size_t)(full - out - MARGIN) ||
                (size_t)(end - in) < literals + STRIDE) {
                frame->literals = literals;
                frame->token = token;
                break;
            }
            copy(out, in, literals);
        }
        in += literals, out += literals;
        size_t offset = (size_t)in[0] | (size_t)in[1] << 8;
        in += 2;
        if (offset - 1 >= (size_t)(out - frame->window)) /* nought, or before the start */
            return false;
        if (match < 19 && offset >= 8) {
            memcpy(out, out - offset, 8);
            memcpy(out + 8, out + 8 - offset, 8);
            memcpy(out + 16, out + 16 - offset, 2);
            out += match;
            continue;
        }
        if (match == 19 && !read_length(&in, end, &match))
            return false;
        if (match > (size_t)(full - out)) {
            frame->match = match;
            frame->offset = offset;
            break;
        }
        copy_match(out, offset, match);
        out += match;
    }
    frame->in.at = in, frame->out = out;
    return true;
}

/* Unpacks one sequence, or what is left of one; false if it is broken. */
static bool unpack_one(Frame *frame)
{
    Cursor in = {frame->in.at, frame->block_end};
    uint8_t *const full = frame->window + WINDOW;
    if (frame->token < 0 && !frame->match) {
        if (in.at == in.end)
            return false;
        frame->token = *in.at++;
        frame->literals = (size_t)frame->token >> 4;
        if (frame->literals == 15 && !read_length(&in.at, in.end, &frame->literals))
            return false;
    }
    size_t room = (size_t)(full - frame->out);
    size_t fits = frame->literals < room ? frame->literals : room;
    if (frame->literals > (size_t)(in.end - in.at))
        return false;
    memcpy(frame->out, in.at, fits);
    frame->out += fits, in.at += fits, frame->literals -= fits;
    frame->in.at = in.at;
    if (frame->literals || (frame->token >= 0 && in.at == in.end))
        return true; /* no room for more; or this was the last one, which has no match */
    if (frame->token >= 0) {
        if (in.end - in.at < 2)
            return false;
        frame->offset = (size_t)in.at[0] | (size_t)in.at[1] << 8;
        frame->match = (size_t)(frame->token & 15) + 4;
        frame->token = -1;
        in.at += 2;
        if ((frame->match == 19 && !read_length(&in.at, in.end, &frame->match)) ||
            frame->offset - 1 >= (size_t)(frame->out - frame->window))
            return false;
        frame->in.at = in.at;
    }
    room = (size_t)(full - frame->out);
    fits = frame->match < room ? frame->match : room;
    if (fits)
        copy_match(frame->out, frame->offset, fits);
    frame->out += fits, frame->match -= fits;
    return true;
}

/* Whether the block has no more to give: its last sequence ends with literals. */
static bool at_block_end(const Frame *frame)
{
    return frame->in.at == frame->block_end && frame->token >= 0 && !frame->literals;
}

/* Unpacks until the block ends or the window is full. */
static void unpack(Frame *frame)
{
    const uint8_t *full = frame->window + WINDOW;
    while (!frame->bad && !at_block_end(frame) && frame->out < full) {
        bool between = frame->token < 0 && !frame->match;
        frame->bad = (between && !unpack_most(frame)) || !unpack_one(frame);
    }
}

/* ---- blocks ---- */

/* Lets the records be read that lie between two places; false if the frame has grown too much. */
static bool show(Frame *frame, const uint8_t *start, const uint8_t *end)
{
    frame->source.cursor = (Cursor){start, end};
    frame->block_room -= end - start;
    frame->left -= end - start;
    frame->bad = frame->bad || frame->block_room < 0 || frame->left < 0;
    return !frame->bad;
}

/* Goes to the next block; false at the end. A block that was not worth packing is shown as it is. */
static bool next_block(Frame *frame, bool *shown)
{
    Cursor *in = &frame->in;
    if (in->end - in->at < 4) {
        frame->bad = true;
        return false;
    }
    uint32_t word = little32(in->at), size = word & 0x7FFFFFFFu;
    in->at += 4;
    if (word == 0)
        return false;
    if (size > (uint64_t)(in->end - in->at) || (int64_t)size > frame->block_most) {
        frame->bad = true;
        return false;
    }
    frame->block_room = frame->block_most;
    *shown = word != size;
    if (*shown) {
        in->at += size;
        return show(frame, in->at - size, in->at);
    }
    frame->block_end = in->at + size;
    frame->out = frame->window;
    frame->literals = frame->match = 0;
    frame->token = -1;
    return true;
}

static bool next_window(Source *source)
{
    Frame *frame = (Frame *)source;
    source->cursor.at = source->cursor.end;
    while (!frame->bad) {
        if (frame->block_end == NULL) {
            bool shown = false;
            if (!next_block(frame, &shown))
                return false;
            if (shown && source->cursor.at < source->cursor.end)
                return true;
            if (shown)
                continue;
        } else {
            /* The window was full: what a match can name moves to its start. */
            memmove(frame->window, frame->out - FARTHEST - 1, FARTHEST + 1);
            frame->out = frame->window + FARTHEST + 1;
        }
        const uint8_t *start = frame->out;
        unpack(frame);
        if (frame->bad)
            return false;
        if (at_block_end(frame))
            frame->block_end = NULL;
        if (!show(frame, start, frame->out))
            return false;
        if (source->cursor.at < source->cursor.end)
            return true;
    }
    return false;
}

/* ---- the function ---- */

bool judge_lz4(State *state, Cursor data, int64_t *most, const Rules *rules, Findings *found,
               bool *rest)
{
    Frame frame = {.source = {.refill = next_window}, .in = data, .left = *most};
    if (!read_descriptor(&frame))
        return false;
    frame.window = state->window;
    state->window = NULL;
    if (frame.window == NULL)
        frame.window = malloc(WINDOW + SLACK);
    if (frame.window == NULL) {
        PyErr_NoMemory();
        return false;
    }
    bool longer = data.end - data.at >= LONG_FRAME_BYTES || *most >= LONG_OUTPUT_BYTES;
    PyThreadState *thread = longer ? PyEval_SaveThread() : NULL;
    *found = judge_all(&frame.source, rules, rest);
    if (thread != NULL)
        PyEval_RestoreThread(thread);
    if (state->window == NULL)
        state->window = frame.window;
    else
        free(frame.window);
    *most = frame.left;
    return !frame.bad;
}

PyObject *check_lz4(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    State *state = PyModule_GetState(module);
    int64_t most;
    Rules rules;
    if (!argument_count("check_lz4", nargs, 7) || !int64_argument(args[1], &most) ||
        !rules_argument(args + 2, &rules))
        return NULL;
    Py_buffer data;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0)
        return NULL;
    Findings found;
    bool rest;
    bool judged = judge_lz4(state, cursor_over(&data), &most, &rules, &found, &rest);
    PyBuffer_Release(&data);
    if (judged)
        return findings_tuple(state, &found, rest);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}
