/* What calls of the C interface take. Prints a line for each piece: a word, a number, and the time of a fixed loop right
   before and after it, by which the reader of the lines tells a quiet machine from a busy one. An urgent call also has
   the time of the long run that it came into. On a busy machine there are fewer pieces: each kind of them takes half a
   minute at most.

   usage: c_calls LIBRARY calls PIECES
          c_calls LIBRARY urgent FILE SAMPLES     (FILE: see read_network)
          c_calls LIBRARY memory FILE
          c_calls LIBRARY cancel FILE MOMENTS */
#include <openhtp_qnn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 64, CALLS = 400, DEPTH = 10, MOST = 64, PATIENCE_US = 30000000 };

static const qnn_functions *qnn;
static qnn_handle backend, device;

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static double spin_us(int turns)
{
    double begin = now_us();
    for (volatile int i = 0; i < turns; i++)
        ;
    return now_us() - begin;
}

/* Some milliseconds on one core: longer than others on the machine let us have it undisturbed. */
static double probe_us(void)
{
    return spin_us(15000000);
}

/* Libraries print, too: a sign before each line tells ours from theirs. */
static void tell(const char *what, double number, double before_us, double after_us)
{
    printf("= %s %.3f %.1f %.1f\n", what, number, before_us, after_us);
}

static void sleep_us(double us)
{
    struct timespec a_while = {(long)(us / 1e6), 1000L * ((long)us % 1000000)};
    nanosleep(&a_while, NULL);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, count, sizeof *values, by_size);
    return values[count / 2];
}

typedef struct {
    qnn_handle context, graph;
    uint32_t n_in, n_out;
    qnn_tensor in[MOST], out[MOST];
} network;

static qnn_handle new_context(uint32_t priority)
{
    qnn_config urgency = {.option = QNN_CONTEXT_PRIORITY, .of.number = priority};
    const qnn_config *configs[] = {&urgency, NULL};
    qnn_handle context;
    QNN_NEED(qnn->context_create(backend, device, configs, &context));
    return context;
}

/* o = a + b, on bytes. */
static void build_addition(network *n, uint32_t priority)
{
    static uint32_t dims[] = {1, 4, 4, 4};
    const char *names[] = {"a", "b", "o"};
    qnn_tensor tensors[3];
    n->context = new_context(priority);
    QNN_NEED(qnn->graph_create(n->context, "add", NULL, &n->graph));
    for (int i = 0; i < 3; i++) {
        tensors[i] = (qnn_tensor){.version = 1, .name = names[i], .kind = i < 2 ? QNN_APP_WRITE : QNN_APP_READ,
                                  .type = QNN_UFIXED8, .rank = 4, .dims = dims};
        tensors[i].quant.defined = 1;
        tensors[i].quant.of.plain = (qnn_scale_offset){i < 2 ? 0.02f : 0.04f, -128};
        QNN_NEED(qnn->tensor_create(n->graph, &tensors[i]));
    }
    qnn_op add = {1, "add0", "qti.aisw", "ElementWiseAdd", 0, NULL, 2, tensors, 1, tensors + 2};
    QNN_NEED(qnn->graph_add_node(n->graph, add));
    QNN_NEED(qnn->graph_finalize(n->graph, NULL, NULL));
    for (int i = 0; i < 3; i++)
        tensors[i].raw.data = calloc(1, SIZE), tensors[i].raw.size = SIZE;
    n->n_in = 2, n->n_out = 1;
    memcpy(n->in, tensors, 2 * sizeof *tensors), n->out[0] = tensors[2];
}

typedef struct {
    char path[4096], graph[256];
    void *data;
    size_t size;
} binary;

/* A file of lines: the path of a context binary; the graph's name; numbers of inputs and outputs; and for each of those
   its id, bytes, rank and dimensions. The binary is mapped, as a file that others may change. */
static void read_network(network *n, binary *b, const char *path)
{
    FILE *file = fopen(path, "r");
    if (!file || fscanf(file, "%4095[^\n] %255s %u %u", b->path, b->graph, &n->n_in, &n->n_out) != 4 || n->n_in > MOST ||
        n->n_out > MOST)
        exit((fprintf(stderr, "%s is no description of a network\n", path), 1));
    for (uint32_t i = 0; i < n->n_in + n->n_out; i++) {
        qnn_tensor *t = i < n->n_in ? &n->in[i] : &n->out[i - n->n_in];
        uint32_t bytes = 0;
        *t = (qnn_tensor){.version = 1, .name = "", .kind = i < n->n_in ? QNN_APP_WRITE : QNN_APP_READ};
        if (fscanf(file, "%u %u %u", &t->id, &bytes, &t->rank) != 3 || t->rank > 8)
            exit((fprintf(stderr, "%s: tensor %u\n", path, i), 1));
        t->dims = calloc(8, sizeof *t->dims);
        for (uint32_t d = 0; d < t->rank; d++)
            if (fscanf(file, "%u", &t->dims[d]) != 1)
                exit(1);
        t->raw.data = calloc(1, bytes), t->raw.size = bytes;
    }
    fclose(file);
    FILE *data = fopen(b->path, "rb");
    if (!data || fseek(data, 0, SEEK_END))
        exit((perror(b->path), 1));
    b->size = (size_t)ftell(data);
    b->data = mmap(NULL, b->size, PROT_READ, MAP_PRIVATE, fileno(data), 0);
    if (b->data == MAP_FAILED)
        exit((perror(b->path), 1));
    fclose(data);
}

static void load_network(network *n, const binary *b, const qnn_config **configs)
{
    QNN_NEED(qnn->context_from_binary(backend, device, configs, b->data, b->size, &n->context, NULL));
    QNN_NEED(qnn->graph_retrieve(n->context, b->graph, &n->graph));
}

static void run(network *n)
{
    QNN_NEED(qnn->graph_execute(n->graph, n->in, n->n_in, n->out, n->n_out, NULL, NULL));
}

static qnn_code queue(network *n, qnn_notify notify, void *param)
{
    return qnn->graph_execute_async(n->graph, n->in, n->n_in, n->out, n->n_out, NULL, NULL, notify, param);
}

/* ---- calls of a trivial graph --------------------------------------------------------------------------------- */

static atomic_int ended;

static void count_end(void *param, qnn_code status)
{
    (void)param;
    if (status)
        exit((fprintf(stderr, "an execution ended with %lu\n", (unsigned long)status), 1));
    atomic_fetch_add(&ended, 1);
}

static sem_t over;

static void post_end(void *param, qnn_code status)
{
    count_end(param, status);
    sem_post(&over);
}

/* Asleep while it waits, as clients are: the NPU and its notification may need the core. */
static double round_trip_us(network *n)
{
    double begin = now_us();
    if (queue(n, post_end, NULL))
        return -1;
    while (sem_wait(&over))
        ;
    return now_us() - begin;
}

static double queued_us(network *n)
{
    atomic_store(&ended, 0);
    double begin = now_us();
    for (int i = 0; i < CALLS; i++)
        QNN_NEED(queue(n, count_end, NULL));
    while (atomic_load(&ended) < CALLS)
        ;
    return (now_us() - begin) / CALLS;
}

static void calls(int pieces)
{
    static double times[CALLS];
    static network cold, n, fresh;
    build_addition(&cold, QNN_PRIORITY_NORMAL);
    double first = round_trip_us(&cold);
    int can_queue = first >= 0;
    if (can_queue)
        tell("cold", first, 0, 0);
    /* The first asynchronous call of a context that has run its graph before, and of one that has not. */
    double until = now_us() + PATIENCE_US;
    for (int round = 0, last = 0; round < pieces && !last; round++) {
        build_addition(&n, QNN_PRIORITY_NORMAL);
        build_addition(&fresh, QNN_PRIORITY_NORMAL);
        for (int i = 0; i < 20; i++)
            run(&n);
        double before = probe_us();
        if (can_queue) {
            first = round_trip_us(&n);
            tell("first", first, before, probe_us());
            /* A later one after the same break, in which caches lose what they had of it. */
            for (int i = 0; i < 20; i++)
                round_trip_us(&n);
            before = probe_us();
            first = round_trip_us(&n);
            tell("rested", first, before, probe_us());
            before = probe_us();
            first = round_trip_us(&fresh);
            tell("fresh", first, before, probe_us());
        }
        QNN_NEED(qnn->context_free(fresh.context, NULL));
        last = now_us() > until;
        if (round + 1 < pieces && !last)
            QNN_NEED(qnn->context_free(n.context, NULL));
    }
    until = now_us() + PATIENCE_US;
    for (int piece = 0; piece < pieces && (!piece || now_us() < until); piece++) {
        double before = probe_us();
        for (int i = 0; i < CALLS; i++) {
            double begin = now_us();
            run(&n);
            times[i] = now_us() - begin;
        }
        tell("sync", median(times, CALLS), before, probe_us());
        if (!can_queue)
            continue;
        before = probe_us();
        double each = queued_us(&n);
        tell("async", each, before, probe_us());
        before = probe_us();
        for (int i = 0; i < 100; i++)
            times[i] = round_trip_us(&n);
        tell("later", median(times, 100), before, probe_us());
    }
}

/* ---- an urgent graph beside a long one -------------------------------------------------------------------------- */

static atomic_int wanted, under_way;

/* The last long runs, and when the one under way began. */
enum { KEPT = 1 << 10 };
static struct { double begin, end; } long_runs[KEPT];
static atomic_int n_long_runs;
static double long_began;

static void note_long_run(void)
{
    int number = atomic_load(&n_long_runs);
    double now = now_us();
    long_runs[number % KEPT].begin = long_began, long_runs[number % KEPT].end = now;
    long_began = now;
    atomic_store(&n_long_runs, number + 1);
}

/* The longest of the long runs into which a call came, once they are over. */
static double long_run_beside(double begin, double end)
{
    double longest = 0;
    for (int last = 0; !last;) {
        int count = atomic_load(&n_long_runs);
        last = count && long_runs[(count - 1) % KEPT].end > end;
        for (int i = count > KEPT / 2 ? count - KEPT / 2 : 0; last && i < count; i++) {
            double from = long_runs[i % KEPT].begin, to = long_runs[i % KEPT].end;
            if (from < end && begin < to && to - from > longest)
                longest = to - from;
        }
        if (!last)
            sleep_us(1000);
    }
    return longest;
}

static void *run_on(void *param)
{
    long_began = now_us();
    while (atomic_load(&wanted))
        run(param), note_long_run();
    return NULL;
}

static void queue_on(void *param, qnn_code status)
{
    if (status)
        exit((fprintf(stderr, "the long run ended with %lu\n", (unsigned long)status), 1));
    if (long_began)
        note_long_run();
    else
        long_began = now_us();
    if (atomic_load(&wanted))
        QNN_NEED(queue(param, queue_on, param));
    else
        atomic_store(&under_way, 0);
}

static void beside(const char *words, network *background, network *urgent, int samples, double long_us, int async)
{
    pthread_t thread;
    atomic_store(&wanted, 1), atomic_store(&under_way, async), atomic_store(&n_long_runs, 0), long_began = 0;
    if (async)
        queue_on(background, 0);
    else
        pthread_create(&thread, NULL, run_on, background);
    srand(1);
    double until = now_us() + PATIENCE_US;
    for (int i = 0; i < samples && (!i || now_us() < until); i++) {
        /* Asleep between the probe and the call: who has just used a core for long gets it back late. */
        double before = probe_us();
        sleep_us(long_us * (0.2 + 1.3 * rand() / RAND_MAX));
        spin_us(300000); /* a core that slept is slow at first, on a quiet machine, too */
        double begin = now_us(), took;
        if (async)
            took = round_trip_us(urgent);
        else
            run(urgent), took = now_us() - begin;
        double after = probe_us();
        printf("= %s %.3f %.1f %.1f %.1f\n", words, took, before, after, long_run_beside(begin, begin + took));
    }
    atomic_store(&wanted, 0);
    if (!async)
        pthread_join(thread, NULL);
    while (atomic_load(&under_way))
        sleep_us(1000);
}

static void urgent(const char *path, int samples)
{
    static network low, high, equal;
    static binary stored;
    qnn_config urgency = {.option = QNN_CONTEXT_PRIORITY, .of.number = QNN_PRIORITY_LOW};
    const qnn_config *configs[] = {&urgency, NULL};
    double times[10];
    read_network(&low, &stored, path);
    load_network(&low, &stored, configs);
    build_addition(&equal, QNN_PRIORITY_LOW);
    build_addition(&high, QNN_PRIORITY_HIGH);
    for (int i = 0; i < 10; i++) {
        run(&high), run(&equal);
        double begin = now_us();
        run(&low);
        times[i] = now_us() - begin;
    }
    double long_us = median(times, 10);
    tell("long", long_us, 0, 0);
    beside("equal", &low, &equal, samples / 4, long_us, 0);
    beside("sync", &low, &high, samples, long_us, 0);
    if (round_trip_us(&high) >= 0)
        beside("async", &low, &high, samples, long_us, 1);
}

/* ---- a large binary --------------------------------------------------------------------------------------------- */

/* Memory of this process when one graph of a mapped binary has run, and the client has given the mapping back. */
static void resident(const char *path)
{
    static network n;
    static binary stored;
    qnn_config kept = {.option = QNN_CONTEXT_PERSISTENT_BINARY, .of.number = 1};
    qnn_config limit = {.option = QNN_CONTEXT_MEMORY_LIMIT_HINT, .of.wide = 1};
    const qnn_config *configs[] = {&kept, &limit, NULL};
    unsigned long size, pages;
    read_network(&n, &stored, path);
    load_network(&n, &stored, configs);
    run(&n);
    madvise(stored.data, stored.size, MADV_DONTNEED);
    run(&n);
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%lu %lu", &size, &pages) != 2)
        exit((perror("statm"), 1));
    fclose(file);
    tell("resident", (double)pages * sysconf(_SC_PAGESIZE) / (1 << 20), 0, 0);
}

typedef struct {
    qnn_handle signal;
    double moment_us, triggered_us;
} aborter;

static void *trigger(void *param)
{
    aborter *a = param;
    sleep_us(a->moment_us);
    a->triggered_us = now_us();
    qnn->signal_trigger(a->signal); /* refused if the call was over before */
    return NULL;
}

/* From an abort signal until the call is back; less than 0 if it had come to its end. */
static double stopped_us(const binary *b, double moment_us)
{
    aborter a = {.moment_us = moment_us};
    qnn_handle context = NULL;
    pthread_t thread;
    QNN_NEED(qnn->signal_create(backend, NULL, &a.signal));
    pthread_create(&thread, NULL, trigger, &a);
    qnn_code code = qnn->context_from_binary_with_signal(backend, device, NULL, b->data, b->size, &context, NULL, a.signal);
    double back_us = now_us();
    pthread_join(thread, NULL);
    QNN_NEED(qnn->signal_free(a.signal));
    if (!code)
        QNN_NEED(qnn->context_free(context, NULL));
    return code ? back_us - a.triggered_us : -1;
}

static void cancel(const char *path, int moments)
{
    static network n;
    static binary stored;
    read_network(&n, &stored, path);
    /* The first call of a process, which makes its NPU, too. */
    double late_us = stopped_us(&stored, 30000);
    if (late_us >= 0)
        tell("cancel", late_us, 0, 0);
    double begin = now_us();
    load_network(&n, &stored, NULL);
    double usual_us = now_us() - begin;
    QNN_NEED(qnn->context_free(n.context, NULL));
    for (int i = 0; i < moments; i++) {
        late_us = stopped_us(&stored, usual_us * (i + 0.5) / moments);
        if (late_us >= 0)
            tell("cancel", late_us, 0, 0);
    }
}

int main(int count, char **words)
{
    if (count < 4)
        return fprintf(stderr, "usage: %s LIBRARY calls PIECES | urgent FILE SAMPLES | memory FILE | cancel FILE MOMENTS\n",
                       words[0]), 2;
    sem_init(&over, 0, 0);
    qnn = qnn_load(words[1]);
    QNN_NEED(qnn->backend_create(NULL, NULL, &backend));
    QNN_NEED(qnn->device_create(NULL, NULL, &device));
    if (!strcmp(words[2], "calls"))
        calls(atoi(words[3]));
    else if (!strcmp(words[2], "memory"))
        resident(words[3]);
    else if (!strcmp(words[2], "cancel"))
        cancel(words[3], count > 4 ? atoi(words[4]) : 1);
    else
        urgent(words[3], count > 4 ? atoi(words[4]) : 1);
    return 0;
}
