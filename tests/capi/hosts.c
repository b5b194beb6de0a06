/* Hosts that are rough with the library, made of the client's parts: usage: hosts LIBRARY SCENARIO SEED */
#define main client_main
#include "client.c"
#undef main
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>

static const char *library_path;
static unsigned seed;

static unsigned any(unsigned below)
{
    return (unsigned)rand_r(&seed) % below;
}

static void rest(long microseconds)
{
    struct timespec a_while = {microseconds / 1000000, microseconds % 1000000 * 1000};
    nanosleep(&a_while, NULL);
}

static word run_async(network *n, void (*tell)(void *, word), void *param)
{
    return CALL(GRAPH_EXECUTE_ASYNC, n->graph, n->in, (uint32_t)2, n->out, (uint32_t)1, (handle)NULL, (handle)NULL, tell,
                param);
}

/* Waits for a count that other threads raise. The one who started us ends what never comes. */
static void await(atomic_int *count, int wanted)
{
    while (atomic_load(count) < wanted)
        rest(500);
    EXPECT(atomic_load(count), (word)wanted);
}

/* ---- the first calls of all come from eight threads at once ---- */

static pthread_barrier_t all_there;

static void *start_and_run(void *number)
{
    pthread_barrier_wait(&all_there);
    NEED((word)find_providers((void *)library_path));
    pthread_barrier_wait(&all_there);
    if (!number)
        load(library_path);
    pthread_barrier_wait(&all_there);
    return work(number);
}

static void host_start(void)
{
    pthread_t threads[8];
    pthread_barrier_init(&all_there, NULL, 8);
    rounds = 2;
    for (size_t i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, start_and_run, (void *)i);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
}

/* ---- callbacks ---- */

static atomic_int ended, context_freed;
static handle context_to_free;

static void free_in_callback(void *param, word status)
{
    (void)param, (void)status;
    if (!atomic_exchange(&context_freed, 1))
        NEED(CALL(CONTEXT_FREE, context_to_free, (handle)NULL));
    atomic_fetch_add(&ended, 1);
}

static void host_free_in_callbacks(void)
{
    load(library_path);
    for (int round = 0; round < 5; round++) {
        network n = build(make_context(1 + any(8)), "g");
        static values v;
        int accepted = 0;
        atomic_store(&ended, 0), atomic_store(&context_freed, 0), context_to_free = n.context;
        fill(&n, &v, round);
        for (unsigned i = 0, wanted = 1 + any(20); i < wanted; i++)
            accepted += !run_async(&n, free_in_callback, NULL);
        await(&ended, accepted);
    }
    unload();
}

static network shared_network;
static atomic_int to_submit;

static void submit_in_callback(void *param, word status)
{
    NEED(status);
    if (atomic_fetch_sub(&to_submit, 1) > 0)
        NEED(run_async(&shared_network, submit_in_callback, param));
    atomic_fetch_add(&ended, 1);
}

static void host_submit_in_callbacks(void)
{
    load(library_path);
    shared_network = build(make_context(1 + any(3)), "g");
    static values v;
    fill(&shared_network, &v, 1);
    int first = 5 + any(30), more = (int)any(200);
    atomic_store(&to_submit, more);
    for (int i = 0; i < first; i++)
        NEED(run_async(&shared_network, submit_in_callback, NULL));
    await(&ended, first + more);
    NEED(CALL(CONTEXT_FREE, shared_network.context, (handle)NULL));
    unload();
}

/* ---- ends ---- */

static void slow_callback(void *param, word status)
{
    (void)param, (void)status;
    rest(20000);
}

static void host_exit_with_work_queued(void)
{
    load(library_path);
    network n = build(make_context(1 + any(60)), "g");
    static values v;
    fill(&n, &v, 1);
    for (unsigned i = 0, wanted = any(60); i < wanted; i++)
        NEED(run_async(&n, slow_callback, NULL));
    exit(0);
}

static atomic_int busy, must_end;

static void *run_until_told(void *own)
{
    network n = build(make_context(0), "g");
    values v;
    fill(&n, &v, (int)(size_t)own);
    for (int i = 0; !atomic_load(&must_end); i++) {
        word code = run(&n);
        if (i == 3)
            atomic_fetch_add(&busy, 1);
        if (code == 1011)
            return NULL; /* the host ends */
        NEED(code);
        check(v.a, v.b, v.o);
    }
    NEED(CALL(CONTEXT_FREE, n.context, (handle)NULL));
    return NULL;
}

static void start_four(pthread_t *threads)
{
    for (size_t i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, run_until_told, (void *)i);
    await(&busy, 4);
}

static void host_exit_with_threads_at_work(void)
{
    pthread_t threads[4];
    load(library_path);
    start_four(threads);
    for (int i = 0; i < 4; i++)
        pthread_detach(threads[i]);
    rest(any(3000));
    exit(0);
}

/* Four threads run until they all end the program, and main returns, too. C forbids it; programs do it. */
static void *run_and_exit(void *own)
{
    network n = build(make_context(0), "g"), queued = build(make_context(20), "q");
    static values held[4];
    static values kept[4];
    fill(&n, &held[(size_t)own], (int)(size_t)own);
    fill(&queued, &kept[(size_t)own], 1);
    for (int i = 0; i < 5; i++)
        NEED(run(&n));
    for (int i = 0; i < 10; i++)
        NEED(run_async(&queued, slow_callback, NULL));
    pthread_barrier_wait(&all_there);
    exit(0);
}

static void host_four_exits_at_once(void)
{
    pthread_t threads[4];
    load(library_path);
    int returns = any(2); /* main leaves with them */
    pthread_barrier_init(&all_there, NULL, 4 + returns);
    for (size_t i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, run_and_exit, (void *)i);
    if (returns)
        pthread_barrier_wait(&all_there);
    else
        pthread_join(threads[0], NULL); /* never */
}

static void host_fork_with_threads_at_work(void)
{
    pthread_t threads[4];
    load(library_path);
    network n = build(make_context(0), "own");
    values v;
    fill(&n, &v, 1);
    start_four(threads);
    for (int i = 0; i < 10; i++) {
        pid_t child = fork();
        if (!child)
            _exit(run(&n) == 1011 && CALL(CONTEXT_FREE, n.context, (handle)NULL) == 0 ? 0 : 1);
        int status;
        waitpid(child, &status, 0);
        EXPECT((word)status, 0);
    }
    atomic_store(&must_end, 1);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    NEED(run(&n));
    check(v.a, v.b, v.o);
    NEED(CALL(CONTEXT_FREE, n.context, (handle)NULL));
    unload();
}

/* ---- threads that are cancelled ---- */

static network own_networks[4];

static void *run_until_cancelled(void *own)
{
    values v;
    fill(&own_networks[(size_t)own], &v, (int)(size_t)own);
    for (int i = 0;; i++) {
        NEED(run(&own_networks[(size_t)own]));
        if (i == 3)
            atomic_fetch_add(&busy, 1);
        pthread_testcancel();
    }
}

static void host_cancelled_threads(void)
{
    pthread_t threads[4];
    load(library_path);
    network n = build(make_context(0), "own");
    values v;
    for (int i = 0; i < 4; i++)
        own_networks[i] = build(make_context(0), "g");
    for (int round = 0; round < 10; round++) {
        atomic_store(&busy, 0);
        for (size_t i = 0; i < 4; i++)
            pthread_create(&threads[i], NULL, run_until_cancelled, (void *)i);
        await(&busy, 4);
        rest(any(3000));
        for (int i = 0; i < 4; i++)
            pthread_cancel(threads[i]);
        for (int i = 0; i < 4; i++)
            pthread_join(threads[i], NULL);
        fill(&n, &v, round);
        NEED(run(&n));
        check(v.a, v.b, v.o);
    }
    for (int i = 0; i < 4; i++)
        NEED(CALL(CONTEXT_FREE, own_networks[i].context, (handle)NULL));
    NEED(CALL(CONTEXT_FREE, n.context, (handle)NULL));
    unload();
}

/* ---- signals that interrupt every call of the system ---- */

static atomic_int alarms;

static void count_alarm(int number)
{
    (void)number;
    atomic_fetch_add(&alarms, 1);
}

static void host_signals(void)
{
    load(library_path);
    network n = build(make_context(0), "g"), queued = build(make_context(4), "q");
    values v;
    static values w;
    struct sigaction action = {.sa_handler = count_alarm};
    struct itimerval often = {{0, 700 + any(2000)}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    atomic_store(&told, 0), atomic_store(&failed, 0);
    for (int i = 0; i < 200; i++) {
        static atomic_int done;
        fill(&n, &v, i);
        NEED(run(&n));
        check(v.a, v.b, v.o);
        fill(&queued, &w, 1);
        NEED(run_async(&queued, notify, &done));
    }
    await(&told, 200);
    check(w.a, w.b, w.o);
    setitimer(ITIMER_REAL, &never, NULL);
    if (!atomic_load(&alarms))
        exit((fprintf(stderr, "no signal came\n"), 1));
    NEED(CALL(CONTEXT_FREE, n.context, (handle)NULL));
    NEED(CALL(CONTEXT_FREE, queued.context, (handle)NULL));
    unload();
}

/* ---- descriptors ---- */

/* A daemon's: nothing of the library lies where its standard streams were, or will be. */
static void host_closed_streams(void)
{
    char link[64], target[256];
    static values v;
    for (int fd = 0; fd <= 2; fd++)
        close(fd);
    load(library_path);
    network n = build(make_context(4), "g");
    fill(&n, &v, 1);
    NEED(run(&n));
    for (int fd = 0; fd <= 2; fd++) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, target, sizeof target);
        if (length != 9 || memcmp(target, "/dev/null", 9))
            exit(3 + fd);
    }
    int null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd <= 2; fd++)
        dup2(null, fd);
    close(null);
    NEED(run(&n));
    check(v.a, v.b, v.o);
    NEED(CALL(CONTEXT_FREE, n.context, (handle)NULL));
    unload();
}

/* A program with as many files as it may have gets a code, and goes on when it has closed some. */
static void host_no_descriptors(void)
{
    enum { MOST = 4096 };
    static int files[MOST];
    static values v;
    struct rlimit most = {MOST, MOST};
    int opened = 0;
    handle another, context;
    setrlimit(RLIMIT_NOFILE, &most);
    load(library_path);
    network n = build(make_context(4), "g");
    fill(&n, &v, 1);
    NEED(run(&n));
    setenv("OPENHTP_NPU", "private", 1);
    while ((files[opened] = open("/dev/null", O_RDONLY)) >= 0)
        opened++;
    word code;
    do { /* one more is free in each turn, until they are enough */
        NEED(CALL(DEVICE_CREATE, the_log, (handle)NULL, &another));
        code = CALL(CONTEXT_CREATE, backend, another, (handle)NULL, &context);
        if (code && code != 1007) /* 1007: what was sent could not be received */
            EXPECT(code, 1010);
        NEED(code ? 0 : CALL(CONTEXT_FREE, context, (handle)NULL));
        NEED(CALL(DEVICE_FREE, another));
        NEED(run(&n));
        close(files[--opened]);
    } while (code);
    while (opened)
        close(files[--opened]);
    check(v.a, v.b, v.o);
    NEED(CALL(CONTEXT_CREATE, backend, device, (handle)NULL, &context));
    NEED(CALL(CONTEXT_FREE, context, (handle)NULL));
    NEED(CALL(CONTEXT_FREE, n.context, (handle)NULL));
    unload();
}

int main(int count, char **words)
{
    static const struct { const char *name; void (*host)(void); } hosts[] = {
        {"start", host_start},
        {"free_in_callbacks", host_free_in_callbacks},
        {"submit_in_callbacks", host_submit_in_callbacks},
        {"exit_with_work_queued", host_exit_with_work_queued},
        {"exit_with_threads_at_work", host_exit_with_threads_at_work},
        {"four_exits_at_once", host_four_exits_at_once},
        {"fork_with_threads_at_work", host_fork_with_threads_at_work},
        {"cancelled_threads", host_cancelled_threads},
        {"signals", host_signals},
        {"small_stacks", test_small_stacks},
        {"closed_streams", host_closed_streams},
        {"no_descriptors", host_no_descriptors}};
    if (count < 4)
        return 2;
    library_path = words[1], seed = (unsigned)atoi(words[3]);
    setenv("CLIENT_LIBRARY", words[1], 1);
    for (unsigned i = 0; i < sizeof hosts / sizeof *hosts; i++)
        if (!strcmp(words[2], hosts[i].name)) {
            hosts[i].host();
            return 0;
        }
    return 2;
}
