/* libFuzzer for a target written in Python: `run(arguments, target)` does not return.
 *
 * It is linked into one library with the extension, so that the counters of its branches find
 * libFuzzer; Python loads that library under either name. The target is given a view of memory
 * that is as long as the input and no longer, where a `bytes` object would have a byte behind it.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>

typedef int (*Callback)(const uint8_t *data, size_t size);
int LLVMFuzzerRunDriver(int *argc, char ***argv, Callback callback);

static PyObject *target;

static int one(const uint8_t *data, size_t size)
{
    PyObject *view = PyMemoryView_FromMemory((char *)data, (Py_ssize_t)size, PyBUF_READ);
    PyObject *done = view ? PyObject_CallFunctionObjArgs(target, view, NULL) : NULL;
    if (done == NULL) {
        PyErr_Print();
        abort(); /* libFuzzer keeps the input */
    }
    Py_DECREF(done);
    Py_DECREF(view);
    return 0;
}

static PyObject *run(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *words;
    if (!PyArg_ParseTuple(args, "O!O:run", &PyList_Type, &words, &target))
        return NULL;
    int count = (int)PyList_Size(words);
    char **list = calloc((size_t)count + 1, sizeof(char *));
    for (int i = 0; i < count; i++) {
        PyObject *word = PyUnicode_AsUTF8String(PyList_GetItem(words, i));
        if (word == NULL)
            return NULL;
        list[i] = strdup(PyBytes_AsString(word));
    }
    return PyLong_FromLong(LLVMFuzzerRunDriver(&count, &list, one));
}

static PyMethodDef methods[] = {{"run", run, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};
static PyModuleDef definition = {.m_base = PyModuleDef_HEAD_INIT,
                                 .m_name = "fuzz_driver",
                                 .m_size = -1,
                                 .m_methods = methods};

PyMODINIT_FUNC PyInit_fuzz_driver(void)
{
    return PyModule_Create(&definition);
}
