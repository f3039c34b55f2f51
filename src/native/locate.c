/* locate: where the fields of a request lie, found by a plan that was compiled from the schema.
 *
 * `scriba.native.locate` says what a plan is made of. A walk tells numbers in the order in which
 * the plan asks for them, and gives up on whatever is special or broken.
 */
#include "native.h"

#include <string.h>

#define HEAD 4 /* a plan begins with the key and the version of the API, as its frames do */
#define MAX_STRING 0x7FFF

enum { SKIP, NUMBER, PLACE, SPAN, STRING, BYTES, ARRAY, TAGS, CONSTANT };
enum { COMPACT = 1, NULLABLE = 2, WANTED = 4 };

typedef struct {
    const uint8_t *start;
    Cursor frame;
    int64_t left; /* elements that arrays may yet have */
    Numbers *told;
} Walk;

static Walked tell(Walk *walk, int64_t number)
{
    Numbers *told = walk->told;
    if (told->count == told->room) {
        Py_ssize_t room = 4 * told->room;
        int64_t *more = PyMem_Malloc((size_t)room * sizeof *more);
        if (more == NULL) {
            PyErr_NoMemory();
            return WALK_FAILED;
        }
        memcpy(more, told->list, (size_t)told->count * sizeof *more);
        free_numbers(told);
        told->list = more;
        told->room = room;
    }
    told->list[told->count++] = number;
    return WALKED;
}

void free_numbers(Numbers *numbers)
{
    if (numbers->list != numbers->few)
        PyMem_Free(numbers->list);
    numbers->list = numbers->few;
}

static Walked tell_span(Walk *walk, int64_t from, int64_t to)
{
    Walked outcome = tell(walk, from);
    return outcome == WALKED ? tell(walk, to) : outcome;
}

/* A length, -1 for null; false if there is none. */
static bool read_length(Cursor *cursor, bool compact, int width, int64_t *length)
{
    if (!compact) {
        if (cursor->end - cursor->at < width)
            return false;
        uint64_t bits = big_endian(cursor->at, width);
        *length = width == 2 ? (int16_t)bits : (int32_t)bits;
        if (*length < 0)
            *length = -1;
        cursor->at += width;
        return true;
    }
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 35 && cursor->at < cursor->end; shift += 7) {
        uint8_t byte = *cursor->at++;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *length = (int64_t)value - 1;
            return value <= INT32_MAX;
        }
    }
    return false;
}

static bool is_ascii(const uint8_t *at, int64_t size)
{
    uint8_t bits = 0;
    while (size-- > 0)
        bits |= *at++;
    return bits < 0x80;
}

static Walked walk_content(Walk *walk, uint8_t code, uint8_t flags)
{
    Cursor *frame = &walk->frame;
    int64_t size;
    if (!read_length(frame, flags & COMPACT, code == STRING ? 2 : 4, &size))
        return GIVEN_UP;
    if (size < 0) {
        if (!(flags & NULLABLE))
            return GIVEN_UP;
        return flags & WANTED ? tell_span(walk, -1, -1) : WALKED;
    }
    if (size > frame->end - frame->at ||
        (code == STRING && (size > MAX_STRING || !is_ascii(frame->at, size))))
        return GIVEN_UP;
    int64_t from = frame->at - walk->start;
    frame->at += size;
    return flags & WANTED ? tell_span(walk, from, from + size) : WALKED;
}

static Walked walk_fixed(Walk *walk, uint8_t code, uint8_t size)
{
    const uint8_t *at = walk->frame.at;
    if (walk->frame.end - at < size)
        return GIVEN_UP;
    walk->frame.at += size;
    if (code == NUMBER) {
        uint64_t bits = big_endian(at, size) << (64 - 8 * size);
        return tell(walk, (int64_t)bits >> (64 - 8 * size));
    }
    if (code == PLACE)
        return tell(walk, at - walk->start);
    return code == SPAN ? tell_span(walk, at - walk->start, at - walk->start + size) : WALKED;
}

static Walked walk_steps(Walk *walk, Cursor plan);

static Walked walk_array(Walk *walk, Cursor steps, uint8_t flags)
{
    int64_t count;
    if (!read_length(&walk->frame, flags & COMPACT, 4, &count) || count < 0 ||
        count > walk->frame.end - walk->frame.at || count > walk->left)
        return GIVEN_UP;
    walk->left -= count;
    Walked outcome = tell(walk, count);
    while (outcome == WALKED && count-- > 0)
        outcome = walk_steps(walk, steps);
    return outcome;
}

static Walked no_plan(void)
{
    PyErr_SetString(PyExc_ValueError, "no such plan");
    return WALK_FAILED;
}

static Walked walk_steps(Walk *walk, Cursor plan)
{
    Walked outcome = WALKED;
    while (outcome == WALKED && plan.at < plan.end) {
        if (plan.end - plan.at < 2)
            return no_plan();
        uint8_t code = plan.at[0], argument = plan.at[1];
        plan.at += 2;
        if (code == TAGS) {
            outcome = walk->frame.at < walk->frame.end && *walk->frame.at++ == 0 ? WALKED : GIVEN_UP;
        } else if (code == CONSTANT) {
            outcome = tell(walk, (int8_t)argument);
        } else if (code == STRING || code == BYTES) {
            outcome = walk_content(walk, code, argument);
        } else if (code == ARRAY) {
            Py_ssize_t size = plan.end - plan.at < 2 ? -1 : (Py_ssize_t)big_endian(plan.at, 2);
            if (size <= 0 || size > plan.end - plan.at - 2)
                return no_plan();
            plan.at += 2;
            outcome = walk_array(walk, (Cursor){plan.at, plan.at + size}, argument);
            plan.at += size;
        } else {
            if (code > SPAN || (code == NUMBER && (argument < 1 || argument > 8)))
                return no_plan();
            outcome = walk_fixed(walk, code, argument);
        }
    }
    return outcome;
}

Walked locate_fields(Cursor plan, Cursor frame, int64_t most_elements, Numbers *told)
{
    told->list = told->few;
    told->count = 0;
    told->room = FEW_NUMBERS;
    if (plan.end - plan.at < HEAD || frame.end - frame.at < HEAD ||
        memcmp(plan.at, frame.at, HEAD) != 0)
        return GIVEN_UP;
    Walk walk = {frame.at, {frame.at + HEAD, frame.end}, most_elements, told};
    return walk_steps(&walk, (Cursor){plan.at + HEAD, plan.end});
}

/* locate(plan, frame, most_elements) */
PyObject *locate(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    Py_buffer plan, frame;
    int64_t most_elements;
    if (!argument_count("locate", nargs, 3) || !int64_argument(args[2], &most_elements) ||
        PyObject_GetBuffer(args[0], &plan, PyBUF_SIMPLE) < 0)
        return NULL;
    if (PyObject_GetBuffer(args[1], &frame, PyBUF_SIMPLE) < 0) {
        PyBuffer_Release(&plan);
        return NULL;
    }
    Numbers told;
    Walked outcome =
        locate_fields(cursor_over(&plan), cursor_over(&frame), most_elements, &told);
    PyBuffer_Release(&plan);
    PyBuffer_Release(&frame);
    PyObject *list = outcome == WALKED ? PyList_New(told.count) : NULL;
    for (Py_ssize_t i = 0; list != NULL && i < told.count; i++) {
        PyObject *number = PyLong_FromLongLong(told.list[i]);
        if (number == NULL)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, i, number);
    }
    free_numbers(&told);
    return outcome == GIVEN_UP ? Py_NewRef(Py_None) : list;
}
