/* The functions of Python that the stub uses, all of them in its stable interface or there since 3.9, found by name. */
typedef void PyObject;

static struct {
    int ours; /* whether we started it */
    int (*IsInitialized)(void);
    void (*InitializeEx)(int);
    int (*Ensure)(void);
    void (*Release)(int);
    void *(*ThisThreadState)(void);
    void *(*SaveThread)(void);
    void (*ThreadState_Clear)(void *);
    void (*RestoreThread)(void *);
    void (*ThreadState_DeleteCurrent)(void);
    PyObject *(*Import)(const char *);
    PyObject *(*Attribute)(PyObject *, const char *);
    PyObject *(*Call)(PyObject *, PyObject *const *, size_t, PyObject *);
    PyObject *(*Long)(unsigned long long);
    unsigned long long (*Number)(PyObject *);
    PyObject *(*ListItem)(PyObject *, long);
    PyObject *(*ErrOccurred)(void);
    void (*ErrPrint)(void);
    void (*ErrClear)(void);
    void (*DecRef)(PyObject *);
    int (*RunString)(const char *);
} py;

static const struct { void *where; const char *name; } python_names[] = {
    {&py.IsInitialized, "Py_IsInitialized"},
    {&py.InitializeEx, "Py_InitializeEx"},
    {&py.Ensure, "PyGILState_Ensure"},
    {&py.Release, "PyGILState_Release"},
    {&py.ThisThreadState, "PyGILState_GetThisThreadState"},
    {&py.SaveThread, "PyEval_SaveThread"},
    {&py.ThreadState_Clear, "PyThreadState_Clear"},
    {&py.RestoreThread, "PyEval_RestoreThread"},
    {&py.ThreadState_DeleteCurrent, "PyThreadState_DeleteCurrent"},
    {&py.Import, "PyImport_ImportModule"},
    {&py.Attribute, "PyObject_GetAttrString"},
    {&py.Call, "PyObject_Vectorcall"},
    {&py.Long, "PyLong_FromUnsignedLongLong"},
    {&py.Number, "PyLong_AsUnsignedLongLong"},
    {&py.ListItem, "PyList_GetItem"},
    {&py.ErrOccurred, "PyErr_Occurred"},
    {&py.ErrPrint, "PyErr_Print"},
    {&py.ErrClear, "PyErr_Clear"},
    {&py.DecRef, "Py_DecRef"},
    {&py.RunString, "PyRun_SimpleString"},
};

static char problem[4400];

static const char *python_problem(void)
{
    return problem[0] ? problem : "no library was found";
}

static int take_names(void *library)
{
    for (unsigned i = 0; i < sizeof python_names / sizeof *python_names; i++) {
        void *found = dlsym(library, python_names[i].name);
        if (!found)
            return 1;
        *(void **)python_names[i].where = found;
    }
    return 0;
}

/* The folder that holds the package openhtp: three up from our own file, which is in openhtp/capi/lib. */
static const char *root_of(void *inside)
{
    static char root[4096];
    Dl_info info;
    if (!root[0] && dladdr(inside, &info) && realpath(info.dli_fname, root))
        for (int up = 0; up < 4; up++) {
            char *slash = strrchr(root, '/');
            if (slash)
                *slash = 0;
        }
    return root;
}

/* A line "key=value" of a file, with or without spaces around the sign. */
static int line_of(const char *path, const char *key, char *value, size_t size)
{
    char line[4200];
    FILE *file = fopen(path, "r");
    int found = 0;
    while (file && !found && fgets(line, sizeof line, file)) {
        size_t width = strlen(key);
        char *rest = line + width;
        if (strncmp(line, key, width))
            continue;
        rest += strspn(rest, " ");
        if (*rest != '=')
            continue;
        rest += 1 + strspn(rest + 1, " ");
        rest[strcspn(rest, "\r\n")] = 0;
        snprintf(value, size, "%s", rest);
        found = 1;
    }
    if (file)
        fclose(file);
    return found;
}

/* What the file says that an editable installation leaves beside us. */
static int noted(const char *root, const char *key, char *value, size_t size)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/openhtp/capi/lib/python.cfg", root);
    return line_of(path, key, value, size);
}

static void *try_library(const char *name, int flags)
{
    void *library = dlopen(name, RTLD_NOW | RTLD_GLOBAL | flags);
    if (!library && !(flags & RTLD_NOLOAD) && !problem[0]) {
        const char *words = dlerror();
        snprintf(problem, sizeof problem, "%s", words ? words : name);
    }
    return library;
}

static void *load_library(const char *root)
{
    char name[4300], value[4200];
    const char *given = getenv("OPENHTP_LIBPYTHON");
    void *library = NULL;
    if (given && *given)
        return try_library(given, 0);
    if (noted(root, "libpython", value, sizeof value) && (library = try_library(value, 0)))
        return library;
    /* Installed as .../lib/python3.X/site-packages: that says which one. */
    const char *part = strstr(root, "/python3.");
    int minor = part ? atoi(part + 9) : 0;
    if (minor) {
        /* A virtual environment, .../lib/python3.X/site-packages beside a file that names the folder of its Python. */
        snprintf(name, sizeof name, "%.*s/../pyvenv.cfg", (int)(part - root), root);
        if (line_of(name, "home", value, sizeof value)) {
            snprintf(name, sizeof name, "%s/../lib/libpython3.%d.so.1.0", value, minor);
            if ((library = try_library(name, 0)))
                return library;
        }
        snprintf(name, sizeof name, "%.*s/libpython3.%d.so.1.0", (int)(part - root), root, minor);
        if ((library = try_library(name, 0)))
            return library;
    }
    for (int next = minor ? minor : 14; next >= (minor ? minor : 11) && !library; next--) {
        snprintf(name, sizeof name, "libpython3.%d.so.1.0", next);
        library = try_library(name, 0);
    }
    return library;
}

/* In the process already, as its program or as a library of its own; else loaded. */
static int find_python(const char *root)
{
    if (py.RunString)
        return 0;
    if (take_names(RTLD_DEFAULT)) {
        void *library = NULL;
        char name[64];
        for (int minor = 11; minor < 20 && !library; minor++) {
            snprintf(name, sizeof name, "libpython3.%d.so.1.0", minor);
            library = try_library(name, RTLD_NOLOAD);
        }
        if (!library)
            library = load_library(root);
        if (!library || take_names(library))
            return 1;
    }
    return 0;
}

/* A Python that was moved since it was built, or built to be moved, is at home where its library is. */
static void tell_home(void)
{
    char path[4300], *slash;
    Dl_info info;
    wchar_t *(*decode)(const char *, size_t *) = (wchar_t * (*)(const char *, size_t *)) dlsym(RTLD_DEFAULT, "Py_DecodeLocale");
    void (*set_home)(const wchar_t *) = (void (*)(const wchar_t *))dlsym(RTLD_DEFAULT, "Py_SetPythonHome");
    if (!decode || !set_home || getenv("PYTHONHOME") || !dladdr((void *)py.InitializeEx, &info))
        return;
    const char *version = strstr(info.dli_fname, "libpython3.");
    char *folder = realpath(info.dli_fname, NULL);
    if (version && folder && (slash = strrchr(folder, '/'))) {
        *slash = 0;
        snprintf(path, sizeof path, "%s/python3.%d/os.py", folder, atoi(version + 11));
        slash = strrchr(folder, '/');
        if (slash && !strcmp(slash, "/lib") && !access(path, R_OK)) {
            *slash = 0;
            wchar_t *home = decode(folder, NULL); /* kept by Python */
            if (home)
                set_home(home);
        }
    }
    free(folder);
}

static void start_python(void)
{
    if (py.IsInitialized())
        return;
    tell_home();
    py.InitializeEx(0);
    py.ours = 1;
    py.SaveThread();
}

/* The function that starts the Python side. What is not installed for this Python is looked for where we are; one
   that we started ourselves has nothing installed that could be relied on. */
static PyObject *python_start(const char *root)
{
    char code[9000], value[4200] = "";
    const char *site = getenv("OPENHTP_SITE");
    if (!site || !*site)
        site = noted(root, "site", value, sizeof value) ? value : "";
    PyObject *module = py.ours ? NULL : py.Import("openhtp.capi.boot");
    if (!module) {
        py.ErrClear();
        snprintf(code, sizeof code,
                 "import site, sys\n"
                 "for folder in [r'''%s''', *r'''%s'''.split(':')]:\n"
                 "    if folder and folder not in sys.path:\n"
                 "        site.addsitedir(folder)\n",
                 root, site);
        if (py.RunString(code))
            return NULL;
        module = py.Import("openhtp.capi.boot");
    }
    return module ? py.Attribute(module, "start") : NULL;
}
