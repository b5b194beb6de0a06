/* libQnnHtp.so, libQnnSystem.so and libQnnSaver.so: the C side of openhtp.capi.

   Every function of the interface packs its arguments into words and hands them to dispatch(), which calls the
   Python function of that number. Nothing else is decided here: what an argument means is said in openhtp/abi, what
   a call does in openhtp/capi. No header of Python or of the vendor is used, and neither is linked: one file serves
   every Python, found in the process or loaded by us. The libraries differ in their SONAME only; Python knows by the
   file's name which one it serves. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

#include "python.h"

typedef uint64_t word;
#define API __attribute__((visibility("default")))

enum { GRAPH_EXECUTE = 21, GRAPH_EXECUTE_ASYNC = 22, SYSTEM_FIRST = 128, POWER_FIRST = 192, ALL = 208, MOST_ARGUMENTS = 10 };
enum { NOT_SUPPORTED = 1000, NO_MEMORY = 1002, INVALID_ARGUMENT = 1004, DEVICE_GONE = 1011, GENERAL = 1100 };

/* ---- state ---------------------------------------------------------------------------------------------------- */

static PyObject *handlers[ALL];
static atomic_int ready, closed, under_way, exiting, orphaned;
/* Who needs the interpreter's lock for a moment: the thread that computes, and callers that queue an execution. Each lets
   the other finish, as being woken for the lock takes longer than either keeps it. See engine/native/sessions.c. */
static struct { _Atomic int64_t claimed; atomic_int queueing; } turns;
enum { LONGEST_CLAIM_NS = 60000 };
static pthread_mutex_t boot_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_key_t thread_key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* A provider is a short head and then its functions; clients copy as much as their own headers say, so zeros follow
   for functions that are not yet known. */
static word core_provider[512] __attribute__((aligned(4096)));
static word system_provider[512] __attribute__((aligned(4096)));
static word *core_list[1] = {core_provider}, *system_list[1] = {system_provider};

/* ---- threads -------------------------------------------------------------------------------------------------- */

/* Thread states that we made for threads which Python does not know, and which have ended. */
static struct ended { void *state; struct ended *next; } *_Atomic ended_threads;

/* A thread ends. Whoever waits for it may hold Python's lock, so it does not ask for that: its state is left to the
   next thread that enters Python. */
static void forget_thread(void *state)
{
    struct ended *mine = atomic_load(&closed) ? NULL : malloc(sizeof *mine);
    if (!mine)
        return;
    mine->state = state;
    mine->next = atomic_load(&ended_threads);
    while (!atomic_compare_exchange_weak(&ended_threads, &mine->next, mine))
        ;
}

/* On a thread that Python does not know: since 3.12, deleting the state of another thread makes Python forget the state
   of the thread that deletes it. So this one takes each state for its own first. */
static void *clear_states(void *first)
{
    while (first) {
        struct ended *one = first;
        py.RestoreThread(one->state);
        py.ThreadState_Clear(one->state);
        py.ThreadState_DeleteCurrent();
        first = one->next;
        free(one);
    }
    return NULL;
}

static void clear_ended_threads(void)
{
    struct ended *first = atomic_exchange(&ended_threads, NULL);
    pthread_attr_t detached;
    pthread_t thread;
    if (!first)
        return;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    /* Where no thread can be had, a few states stay until the process ends. */
    pthread_create(&thread, &detached, clear_states, first);
    pthread_attr_destroy(&detached);
}

/* Python ends the process where it runs out of stack, which it does at about 50 KiB when it starts. */
enum { LEAST_STACK_KIB = 56 };

/* Whether the calling thread has too little stack left for Python. A stack that is not the thread's own, as of a
   coroutine, is not known, and is taken to be large enough. */
static int is_stack_short(void)
{
    static __thread char *lowest;
    static __thread int said;
    char here;
    if (!lowest) {
        pthread_attr_t attributes;
        void *address = NULL;
        size_t size;
        if (!pthread_getattr_np(pthread_self(), &attributes)) {
            pthread_attr_getstack(&attributes, &address, &size);
            pthread_attr_destroy(&attributes);
        }
        lowest = address ? address : &here - 64 * 1024 * 1024;
    }
    size_t left = (size_t)((uintptr_t)&here - (uintptr_t)lowest);
    if (left >= LEAST_STACK_KIB * 1024)
        return 0;
    if (!said++)
        dprintf(STDERR_FILENO, "openhtp: the calling thread has %zu KiB of stack left, and %d are needed; give it a"
                               " stack of 64 KiB or more (pthread_attr_setstacksize)\n", left / 1024, LEAST_STACK_KIB);
    return 1;
}

static void in_child(void)
{
    /* A Python that we started ourselves knows nothing of a fork by the host: leave it alone. One that started us
       sees to it by itself. */
    if (py.ours && !atomic_exchange(&closed, 1))
        atomic_store(&orphaned, 1);
    atomic_store(&under_way, 0);
    atomic_store(&turns.claimed, 0);
    atomic_store(&turns.queueing, 0);
    atomic_store(&exiting, 0);
}

static void prepare_process(void)
{
    pthread_key_create(&thread_key, forget_thread);
    pthread_atfork(NULL, NULL, in_child);
}

static int enter_python(void)
{
    int known = py.ThisThreadState() != NULL;
    int held = py.Ensure();
    if (!known) {
        /* One more than will be released: so the state outlives the call, and the next one is quick. */
        py.Ensure();
        pthread_setspecific(thread_key, py.ThisThreadState());
    }
    if (atomic_load_explicit(&ended_threads, memory_order_relaxed))
        clear_ended_threads();
    return held;
}

/* ---- helpers for Python --------------------------------------------------------------------------------------- */

typedef void (*log_callback)(const char *format, uint32_t level, uint64_t time, va_list arguments);

static void call_log(log_callback callback, uint32_t level, uint64_t time, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    callback(format, level, time, arguments);
    va_end(arguments);
}

/* Only here can a va_list be made. */
static void say(log_callback callback, uint32_t level, uint64_t time, const char *text)
{
    call_log(callback, level, time, "%s", text);
}

/* The interpreter ends: let calls under way finish, and answer all later ones without it. */
static void shut(void)
{
    struct timespec a_while = {0, 1000000};
    atomic_store(&closed, 1);
    for (int patience = 3000; patience && atomic_load(&under_way) > 0; patience--)
        nanosleep(&a_while, NULL);
}

/* ---- dispatch ------------------------------------------------------------------------------------------------- */

/* Apart, whatever the compiler thinks: their paths take kilobytes of stack, and whoever calls them asks first how much
   of it is left. */
static __attribute__((noinline)) int boot(void);
static __attribute__((noinline)) int locate(void);
static void be_first_at_exit(unsigned id);

static word without_python(unsigned id)
{
    /* Whatever was held is gone with the interpreter, so there is nothing left that could fail to be freed. */
    static const unsigned char frees[] = {8, 14, 27, 34, 36, 38, 43, 47, 50, 65, 70, SYSTEM_FIRST + 3,
                                          SYSTEM_FIRST + 7, SYSTEM_FIRST + 12, SYSTEM_FIRST + 15, POWER_FIRST + 1};
    for (unsigned i = 0; i < sizeof frees; i++)
        if (frees[i] == id)
            return 0;
    if (atomic_exchange(&orphaned, 0)) /* said once */
        dprintf(STDERR_FILENO, "openhtp: this process's parent forked after it had used this library, so calls answer %d"
                               " here; fork before the first call, or start a program of its own (exec)\n", DEVICE_GONE);
    return DEVICE_GONE;
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* A caller is about to queue an execution: a computing thread that needs the lock to begin the one before is first. */
static void take_turn(void)
{
    int64_t claimed;
    while ((claimed = atomic_load(&turns.claimed)) && now_ns() - claimed < LONGEST_CLAIM_NS)
        ;
    atomic_fetch_add(&turns.queueing, 1);
}

static word ask_python(unsigned id, const word *arguments, unsigned count)
{
    if (atomic_load(&closed))
        return without_python(id);
    if (is_stack_short())
        return NO_MEMORY;
    if (!atomic_load(&ready) && boot())
        return GENERAL;
    atomic_fetch_add(&under_way, 1);
    if (id == GRAPH_EXECUTE_ASYNC)
        take_turn();
    word answer = GENERAL;
    if (!atomic_load(&closed)) {
        int held = enter_python();
        PyObject *values[MOST_ARGUMENTS], *result = NULL;
        unsigned made = 0;
        while (made < count && (values[made] = py.Long(arguments[made])))
            made++;
        if (made == count && handlers[id])
            result = py.Call(handlers[id], values, count, NULL);
        if (result)
            answer = py.Number(result);
        if (py.ErrOccurred()) {
            py.ErrPrint();
            answer = GENERAL;
        }
        while (made)
            py.DecRef(values[--made]);
        if (result)
            py.DecRef(result);
        py.Release(held);
        be_first_at_exit(id);
    } else {
        answer = without_python(id);
    }
    atomic_fetch_sub(&turns.queueing, id == GRAPH_EXECUTE_ASYNC);
    atomic_fetch_sub(&under_way, 1);
    return answer;
}

/* A thread that is cancelled ends after the call: in the middle of it, it would take the interpreter's lock along, for
   which all others then wait for ever. */
static word dispatch(unsigned id, const word *arguments, unsigned count)
{
#ifdef PTHREAD_CANCEL_DISABLE /* not on Android, which cancels no threads */
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    word answer = ask_python(id, arguments, count);
    pthread_setcancelstate(before, NULL);
    return answer;
#else
    return ask_python(id, arguments, count);
#endif
}

/* ---- the functions: their number and what they take ------------------------------------------------------------- */

/* Structures that go by value, as wide as they are. */
typedef struct { word words[3]; } bytes24;
typedef struct { word words[4]; } bytes32;
typedef struct { word words[10]; } bytes80;
typedef struct { word words[18]; } bytes144;
typedef void *ptr;
typedef uint32_t u32;
typedef uint64_t u64;
typedef uint8_t u8;

#define W(value) ((word)(value))
#define CALL(id, ...) \
    { \
        const word packed[] = {__VA_ARGS__}; \
        return dispatch(id, packed, sizeof packed / sizeof *packed); \
    }
#define F1(id, A) static word f##id(A a) CALL(id, W(a))
#define F2(id, A, B) static word f##id(A a, B b) CALL(id, W(a), W(b))
#define F3(id, A, B, C) static word f##id(A a, B b, C c) CALL(id, W(a), W(b), W(c))
#define F4(id, A, B, C, D) static word f##id(A a, B b, C c, D d) CALL(id, W(a), W(b), W(c), W(d))
#define F5(id, A, B, C, D, E) \
    static word f##id(A a, B b, C c, D d, E e) CALL(id, W(a), W(b), W(c), W(d), W(e))
#define F6(id, A, B, C, D, E, F) \
    static word f##id(A a, B b, C c, D d, E e, F f) CALL(id, W(a), W(b), W(c), W(d), W(e), W(f))
#define F7(id, A, B, C, D, E, F, G) \
    static word f##id(A a, B b, C c, D d, E e, F f, G g) CALL(id, W(a), W(b), W(c), W(d), W(e), W(f), W(g))
#define F8(id, A, B, C, D, E, F, G, H) \
    static word f##id(A a, B b, C c, D d, E e, F f, G g, H h) \
        CALL(id, W(a), W(b), W(c), W(d), W(e), W(f), W(g), W(h))
#define F9(id, A, B, C, D, E, F, G, H, I) \
    static word f##id(A a, B b, C c, D d, E e, F f, G g, H h, I i) \
        CALL(id, W(a), W(b), W(c), W(d), W(e), W(f), W(g), W(h), W(i))

#include "entries.h"
#include "delivery.h"

/* ---- providers -------------------------------------------------------------------------------------------------- */

/* "major.minor" or "major.minor.patch", of a variable or, where that says nothing, as it is by default. */
static int read_version(const char *variable, const char *by_default, void *place)
{
    const char *given = getenv(variable);
    const char *next = given && *given ? given : by_default;
    uint32_t version[3] = {0, 0, 0};
    int parts = 0;
    while (parts < 3 && *next >= '0' && *next <= '9') {
        char *end;
        version[parts++] = (uint32_t)strtoul(next, &end, 10);
        next = end;
        if (*next != '.' || parts == 3)
            break;
        next++;
    }
    if (parts < 2 || *next || next[-1] == '.') {
        fprintf(stderr, "openhtp: %s is '%s'; expected a version such as %s\n", variable, given ? given : "", by_default);
        return 1;
    }
    memcpy(place, version, sizeof version);
    return 0;
}

/* A function of the vendor's table of which only the place is known. Whatever it takes, its caller cleans up. */
static word unknown(void)
{
    return NOT_SUPPORTED;
}

static int undescribed;

/* Who we are, and the functions. Clients look at it and may still fork: no Python is started for that. */
static void describe(void)
{
    core_provider[0] = BACKEND_ID; /* the system's is 0: it belongs to no backend */
    core_provider[1] = W(PROVIDER_NAME);
    system_provider[1] = W(SYSTEM_PROVIDER_NAME);
    char *core = (char *)(core_provider + 2);
    undescribed = read_version(CORE_VERSION, core) || read_version(HTP_VERSION, core + 12) ||
                  read_version(SYSTEM_VERSION, system_provider + 2);
    memcpy(core_provider + 5, core_entries, sizeof core_entries);
    for (int i = 0; i < SYSTEM_SLOTS; i++)
        system_provider[4 + i] = W(unknown);
    memcpy(system_provider + 4, system_entries, sizeof system_entries);
}

static word list_provider(word **listing, word ***list, uint32_t *count)
{
    static pthread_once_t described = PTHREAD_ONCE_INIT;
    if (!list || !count)
        return INVALID_ARGUMENT;
    if (is_stack_short())
        return NO_MEMORY;
    pthread_once(&described, describe);
    if (undescribed || atomic_load(&closed) || (!atomic_load(&ready) && locate()))
        return NOT_SUPPORTED;
    *list = listing;
    *count = 1;
    return 0;
}

API word QnnInterface_getProviders(word ***list, uint32_t *count)
{
    return list_provider(core_list, list, count);
}

API word QnnSystemInterface_getProviders(word ***list, uint32_t *count)
{
    return list_provider(system_list, list, count);
}

/* Of libQnnSaver.so: where and what to save. Everything is saved in the usual folder. */
API word QnnSaver_initialize(const void **config)
{
    (void)config;
    return 0;
}

/* ---- start ------------------------------------------------------------------------------------------------------ */

static int load_handlers(void)
{
    /* What Python needs of us, by address; among that, whether we started it. It answers with its functions in order. */
    const word given[] = {W(say), W(shut), W(power_entries), W(delivery_functions), W(py.ours), W(&turns)};
    enum { GIVEN = sizeof given / sizeof *given };
    PyObject *values[GIVEN], *list = NULL;
    PyObject *start = python_start(root_of((void *)dispatch));
    if (start) {
        for (int i = 0; i < GIVEN; i++)
            values[i] = py.Long(given[i]);
        list = py.Call(start, values, GIVEN, NULL);
        for (int i = 0; i < GIVEN; i++)
            py.DecRef(values[i]);
    }
    for (int i = 0; list && i < ALL; i++) {
        handlers[i] = py.ListItem(list, i); /* the module holds the list */
        if (!handlers[i])
            list = NULL;
    }
    if (list)
        return 0;
    fprintf(stderr, "openhtp: the Python part of this library could not be started:\n");
    if (py.ErrOccurred())
        py.ErrPrint();
    return 1;
}

/* Threads that call exit at the same time take turns in the list of what is to be done then: while the first is here,
   the others would go on to libraries that it still needs. They stay here; the first ends the process. */
static void let_one_exit(void)
{
    enum { NOBODY, COMING, THERE };
    static pthread_t first;
    int nobody = NOBODY;
    if (atomic_compare_exchange_strong(&exiting, &nobody, COMING)) {
        first = pthread_self();
        atomic_store(&exiting, THERE);
    }
    while (atomic_load(&exiting) == COMING)
        sched_yield();
    while (!pthread_equal(first, pthread_self()))
        pause();
}

static void at_exit(void)
{
    let_one_exit();
    if (atomic_load(&closed) || !py.IsInitialized())
        return;
    shut(); /* before anything ends that calls under way on other threads need */
    int held = enter_python();
    py.RunString("import atexit\natexit._run_exitfuncs()");
    py.Release(held);
}

/* So many threads may call exit at once: each of them meets an entry of ours. */
enum { EXITS_AT_ONCE = 16 };

static void register_at_exit(void)
{
    for (int i = 0; i < EXITS_AT_ONCE; i++)
        atexit(at_exit);
}

static int count_loaded(struct dl_phdr_info *info, size_t size, void *count)
{
    (void)size;
    *(unsigned long long *)count = info->dlpi_adds;
    return 1;
}

/* What registered last is ended first. Libraries that Python loads, and what these make when they are first used,
   would be gone while calls are under way that need them. So we register again after calls that loaded a library, and
   after executions ever more rarely; only the first turn does anything. */
static void be_first_at_exit(unsigned id)
{
    static atomic_uint executions;
    static _Atomic unsigned long long known;
    unsigned long long loaded = 0;
    if (!py.ours)
        return;
    if (id == GRAPH_EXECUTE || id == GRAPH_EXECUTE_ASYNC) {
        unsigned number = atomic_fetch_add(&executions, 1) + 1;
        if (!(number & (number - 1)))
            register_at_exit();
        return;
    }
    dl_iterate_phdr(count_loaded, &loaded);
    if (atomic_exchange(&known, loaded) != loaded)
        register_at_exit();
}

/* Find a Python, without starting it: a client that has none is told so at once. */
static int locate(void)
{
    pthread_mutex_lock(&boot_lock);
    int missing = find_python(root_of((void *)dispatch));
    pthread_mutex_unlock(&boot_lock);
    if (missing)
        fprintf(stderr, "openhtp: no Python in this process and none could be loaded: %s. Set OPENHTP_LIBPYTHON to the"
                        " path of a libpython3.x.so\n", python_problem());
    return missing;
}

/* A daemon may have closed its standard streams. What is opened next would lie in their place: what a client then
   writes to its error stream would come to a device, and a client that opens its streams again would cut us off. */
static void fill_standard_streams(void)
{
    int opened;
    do
        opened = open("/dev/null", O_RDWR);
    while (opened >= 0 && opened <= STDERR_FILENO);
    if (opened >= 0)
        close(opened);
}

static int boot(void)
{
    fill_standard_streams();
    if (locate())
        return 1;
    pthread_once(&once, prepare_process);
    /* The lock is never held while we wait for the interpreter's: whoever has that may be waiting for us. */
    pthread_mutex_lock(&boot_lock);
    start_python();
    pthread_mutex_unlock(&boot_lock);
    int held = enter_python();
    int failed = 0;
    if (!atomic_load(&ready)) {
        failed = load_handlers();
        if (!failed) {
            if (py.ours)
                register_at_exit();
            atomic_store(&ready, 1);
        }
    }
    py.Release(held);
    return failed;
}
