/* Two contexts of one program on one NPU: a long network in the background, and a short one that is urgent.

   Prints how long the urgent network takes alone, beside the other with equal priorities, and with priorities that
   tell them apart. All calls are asynchronous or come from two threads, with default settings.

   cc -O2 -I"$(openhtp lib-dir)/../include" share_by_priority.c -o share_by_priority -ldl -lpthread
   ./share_by_priority "$(openhtp lib-dir)/libQnnHtp.so" */
#include <openhtp_qnn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum { LAYERS = 40, SIDE = 256, CHANNELS = 16, RUNS = 30 };

static const qnn_functions *qnn;
static qnn_handle backend, device;

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

typedef struct {
    qnn_handle context, graph;
    uint32_t dims[4];
    qnn_tensor in, out;
    uint8_t *data;
} network;

static qnn_tensor tensor_of(network *n, const char *name, uint32_t kind)
{
    qnn_tensor t = {.version = 1, .name = name, .kind = kind, .type = QNN_UFIXED8, .rank = 4, .dims = n->dims};
    t.quant.defined = 1;
    t.quant.of.plain = (qnn_scale_offset){0.02f, -128};
    return t;
}

/* A chain of additions, x + x + x ..., in a context of the given priority. */
static void build(network *n, uint32_t side, int layers, uint32_t priority)
{
    qnn_config urgency = {.option = QNN_CONTEXT_PRIORITY, .of.number = priority};
    const qnn_config *configs[] = {&urgency, NULL};
    static char names[LAYERS + 1][16];
    memcpy(n->dims, (uint32_t[]){1, side, side, CHANNELS}, sizeof n->dims);
    size_t bytes = (size_t)side * side * CHANNELS;
    n->data = calloc(2, bytes);
    QNN_NEED(qnn->context_create(backend, device, configs, &n->context));
    QNN_NEED(qnn->graph_create(n->context, "chain", NULL, &n->graph));
    n->in = tensor_of(n, "x", QNN_APP_WRITE);
    QNN_NEED(qnn->tensor_create(n->graph, &n->in));
    qnn_tensor last = n->in;
    for (int i = 0; i < layers; i++) {
        snprintf(names[i], sizeof names[i], "y%d", i);
        qnn_tensor made = tensor_of(n, names[i], i + 1 < layers ? QNN_NATIVE : QNN_APP_READ);
        QNN_NEED(qnn->tensor_create(n->graph, &made));
        qnn_tensor inputs[] = {last, n->in};
        qnn_op add = {1, names[i], "qti.aisw", "ElementWiseAdd", 0, NULL, 2, inputs, 1, &made};
        QNN_NEED(qnn->graph_add_node(n->graph, add));
        last = made;
    }
    n->out = last;
    QNN_NEED(qnn->graph_finalize(n->graph, NULL, NULL));
    n->in.raw.data = n->data, n->in.raw.size = (uint32_t)bytes;
    n->out.raw.data = n->data + bytes, n->out.raw.size = (uint32_t)bytes;
}

static double run_ms(network *n)
{
    double begin = now_ms();
    QNN_NEED(qnn->graph_execute(n->graph, &n->in, 1, &n->out, 1, NULL, NULL));
    return now_ms() - begin;
}

/* The background: queued again from its own notification, until it is told to stop. */
static atomic_int wanted, under_way;

static void again(void *param, qnn_code status)
{
    network *n = param;
    if (atomic_load(&wanted) && !status)
        QNN_NEED(qnn->graph_execute_async(n->graph, &n->in, 1, &n->out, 1, NULL, NULL, again, n));
    else
        atomic_store(&under_way, 0);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const char *words, network *background, network *urgent)
{
    double times[RUNS];
    const struct timespec a_moment = {0, 1000000};
    if (background) {
        atomic_store(&wanted, 1), atomic_store(&under_way, 1);
        again(background, 0);
    }
    for (int i = 0; i < RUNS; i++) {
        /* Breaks of different lengths: those of one length might always end when a long run does. */
        struct timespec a_while = {0, 1000000L * (3 + i * 7 % 11)};
        nanosleep(&a_while, NULL);
        times[i] = run_ms(urgent);
    }
    atomic_store(&wanted, 0);
    while (atomic_load(&under_way))
        nanosleep(&a_moment, NULL);
    qsort(times, RUNS, sizeof *times, by_size);
    printf("%-44s median %7.2f ms, worst %7.2f ms\n", words, times[RUNS / 2], times[RUNS - 1]);
    fflush(stdout);
}

int main(int count, char **words)
{
    if (count != 2)
        return fprintf(stderr, "usage: %s LIBRARY\n", words[0]), 2;
    qnn = qnn_load(words[1]);
    QNN_NEED(qnn->backend_create(NULL, NULL, &backend));
    QNN_NEED(qnn->device_create(NULL, NULL, &device));
    network equal = {0}, low = {0}, normal = {0}, high = {0};
    build(&equal, SIDE, LAYERS, QNN_PRIORITY_NORMAL);
    build(&low, SIDE, LAYERS, QNN_PRIORITY_LOW);
    build(&normal, 8, 1, QNN_PRIORITY_NORMAL);
    build(&high, 8, 1, QNN_PRIORITY_HIGH);
    run_ms(&equal), run_ms(&low), run_ms(&normal), run_ms(&high); /* the first run of each also warms up */
    printf("the long network alone takes %.2f ms\n", run_ms(&equal));
    measure("the urgent network alone", NULL, &normal);
    measure("beside the long one, equal priorities", &equal, &normal);
    measure("beside the long one, low and high priority", &low, &high);
    QNN_NEED(qnn->backend_free(backend));
    QNN_NEED(qnn->device_free(device));
    return 0;
}
