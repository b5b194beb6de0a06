/* A QNN client in C, written from our own declarations. It knows nothing of Python.

   usage: client LIBRARY SYSTEM_LIBRARY TEST */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t word;
typedef void *handle;

typedef struct { float scale; int32_t offset; } scale_offset;
typedef struct { uint32_t definition, encoding; union { scale_offset plain; word room[4]; } of; } quantization;
typedef struct {
    uint32_t version, pad;
    uint32_t id;
    const char *name;
    uint32_t kind, format, type;
    quantization quant;
    uint32_t rank;
    uint32_t *dims;
    uint32_t mem_type;
    union { struct { void *data; uint32_t size; } buffer; handle mem; };
    uint8_t *dynamic;
    uint32_t sparse[3];
    uint8_t produced;
} tensor;
typedef struct {
    uint32_t version;
    const char *name, *package, *type;
    uint32_t n_params;
    void *params;
    uint32_t n_inputs;
    tensor *inputs;
    uint32_t n_outputs;
    tensor *outputs;
} op_config;
typedef struct { uint32_t option; union { void *custom; uint32_t number; word wide; uint32_t pair[2]; } of; } config;
typedef struct {
    uint32_t n_dims;
    uint32_t *dims;
    const char *shape_config;
    uint32_t type, mem_type;
    union { int32_t fd; void *custom; struct { int32_t fd; void *data; } dma; } of;
} mem_descriptor;
typedef struct {
    uint32_t version;
    const config **configs;
    const void *binary;
    word size;
    handle profile;
    void (*notify)(handle, handle, const char *, uint32_t, void *, word);
    void *param;
} context_params;

_Static_assert(sizeof(tensor) == 144 && sizeof(op_config) == 80 && sizeof(mem_descriptor) == 48, "layouts");
_Static_assert(sizeof(context_params) == 56 && sizeof(config) == 16 && sizeof(quantization) == 40, "layouts");

enum { BACKEND_CREATE = 1, BACKEND_FREE = 8, CONTEXT_CREATE, CONTEXT_GET_SIZE = 11, CONTEXT_GET_BINARY,
       CONTEXT_FROM_BINARY, CONTEXT_FREE, GRAPH_CREATE, GRAPH_ADD_NODE = 18, GRAPH_FINALIZE, GRAPH_RETRIEVE,
       GRAPH_EXECUTE, GRAPH_EXECUTE_ASYNC, TENSOR_CREATE = 24, LOG_CREATE, LOG_FREE = 27, MEM_REGISTER = 35,
       MEM_DEREGISTER, DEVICE_CREATE = 40, DEVICE_FREE = 43, SIGNAL_CREATE, SIGNAL_TRIGGER = 46, SIGNAL_FREE,
       LIST_ASYNC = 56 };

static void **table;
#define CALL(number, ...) (((word(*)())table[number])(__VA_ARGS__))
#define NEED(what) do { word code_ = (what); if (code_) { \
    fprintf(stderr, "line %d: %s = %lu\n", __LINE__, #what, (unsigned long)code_); exit(1); } } while (0)
#define EXPECT(what, wanted) do { word code_ = (what); if (code_ != (wanted)) { fprintf(stderr, \
    "line %d: %s = %lu, expected %lu\n", __LINE__, #what, (unsigned long)code_, (unsigned long)(wanted)); exit(1); } } while (0)

enum { N = 64 };
static uint32_t dims[4] = {1, 4, 4, 4};
static handle the_log, backend, device;
static atomic_int lines;

static void count_line(const char *format, uint32_t level, word time, va_list arguments)
{
    char text[1000];
    (void)level, (void)time;
    vsnprintf(text, sizeof text, format, arguments);
    atomic_fetch_add(&lines, 1);
}

static void load(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    word (*providers)(void ****, uint32_t *) = (word(*)(void ****, uint32_t *))dlsym(library, "QnnInterface_getProviders");
    void ***list;
    uint32_t count;
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    NEED(providers(&list, &count));
    clock_gettime(CLOCK_MONOTONIC, &b);
    printf("loaded in %ld ms\n", (b.tv_sec - a.tv_sec) * 1000 + (b.tv_nsec - a.tv_nsec) / 1000000);
    table = (void **)list[0] + 5;
    NEED(CALL(LOG_CREATE, count_line, (uint32_t)3, &the_log));
    NEED(CALL(BACKEND_CREATE, the_log, (handle)NULL, &backend));
    NEED(CALL(DEVICE_CREATE, the_log, (handle)NULL, &device));
}

static void unload(void)
{
    NEED(CALL(DEVICE_FREE, device));
    NEED(CALL(BACKEND_FREE, backend));
    NEED(CALL(LOG_FREE, the_log));
}

static tensor make_tensor(const char *name, uint32_t kind, float scale)
{
    tensor t = {.version = 1, .name = name, .kind = kind, .type = 0x0408, .rank = 4, .dims = dims};
    t.quant.definition = 1;
    t.quant.of.plain.scale = scale;
    t.quant.of.plain.offset = -128;
    return t;
}

typedef struct { handle context, graph; tensor in[2], out[1]; } network;

static handle make_context(uint32_t depth)
{
    config queue = {.option = 4, .of.pair = {0, depth}};
    const config *list[] = {&queue, NULL};
    handle context;
    NEED(CALL(CONTEXT_CREATE, backend, device, depth ? list : NULL, &context));
    return context;
}

static network build(handle context, const char *name)
{
    network n = {.context = context};
    n.in[0] = make_tensor("a", 0, 0.02f), n.in[1] = make_tensor("b", 0, 0.02f), n.out[0] = make_tensor("o", 1, 0.04f);
    NEED(CALL(GRAPH_CREATE, context, name, (handle)NULL, &n.graph));
    for (int i = 0; i < 2; i++)
        NEED(CALL(TENSOR_CREATE, n.graph, &n.in[i]));
    NEED(CALL(TENSOR_CREATE, n.graph, &n.out[0]));
    op_config add = {1, "add", "qti.aisw", "ElementWiseAdd", 0, NULL, 2, n.in, 1, n.out};
    NEED(((word(*)(handle, op_config))table[GRAPH_ADD_NODE])(n.graph, add));
    NEED(CALL(GRAPH_FINALIZE, n.graph, (handle)NULL, (handle)NULL));
    return n;
}

typedef struct { uint8_t a[N], b[N], o[N]; } values;

static void fill(network *n, values *v, int seed)
{
    for (int i = 0; i < N; i++)
        v->a[i] = (uint8_t)(seed * 7 + i * 3), v->b[i] = (uint8_t)(seed * 11 + i * 5), v->o[i] = 0;
    n->in[0].buffer.data = v->a, n->in[0].buffer.size = N;
    n->in[1].buffer.data = v->b, n->in[1].buffer.size = N;
    n->out[0].buffer.data = v->o, n->out[0].buffer.size = N;
}

static void check(const uint8_t *a, const uint8_t *b, const uint8_t *o)
{
    for (int i = 0; i < N; i++) {
        double real = 128 + (0.02 * (a[i] - 128) + 0.02 * (b[i] - 128)) / 0.04;
        int wanted = real < 0 ? 0 : real > 255 ? 255 : (int)(real + 0.5);
        if (abs(o[i] - wanted) > 1) {
            fprintf(stderr, "element %d is %d, expected %d\n", i, o[i], wanted);
            exit(1);
        }
    }
}

static word run(network *n)
{
    return CALL(GRAPH_EXECUTE, n->graph, n->in, (uint32_t)2, n->out, (uint32_t)1, (handle)NULL, (handle)NULL);
}

static void test_plain(void)
{
    network n = build(make_context(0), "g");
    values v;
    for (int i = 0; i < 20; i++) {
        fill(&n, &v, i);
        NEED(run(&n));
        check(v.a, v.b, v.o);
    }
    n.in[0].buffer.size = N - 1;
    EXPECT(run(&n), 6004);
    n.in[0].buffer.size = N, n.in[0].buffer.data = (void *)0x1000;
    EXPECT(run(&n), 6004);
    NEED(CALL(CONTEXT_FREE, n.context, (handle)NULL));
    EXPECT(run(&n), 6001);
    if (!atomic_load(&lines))
        exit((fprintf(stderr, "no line was logged\n"), 1));
}

static atomic_int told, failed;

static void notify(void *param, word status)
{
    atomic_fetch_add(status ? &failed : &told, 1);
    atomic_store((atomic_int *)param, 1 + (int)(status & 0xFFFF));
}

static void test_async(void)
{
    enum { COUNT = 40 };
    network n = build(make_context(8), "g");
    static values v[COUNT];
    static atomic_int done[COUNT];
    struct timespec a_while = {0, 1000000};
    for (int i = 0; i < COUNT; i++) {
        fill(&n, &v[i], i);
        NEED(CALL(GRAPH_EXECUTE_ASYNC, n.graph, n.in, (uint32_t)2, n.out, (uint32_t)1, (handle)NULL, (handle)NULL,
                  notify, &done[i]));
    }
    for (int patience = 20000; patience && atomic_load(&told) + atomic_load(&failed) < COUNT; patience--)
        nanosleep(&a_while, NULL);
    EXPECT(atomic_load(&told), COUNT);
    for (int i = 0; i < COUNT; i++)
        check(v[i].a, v[i].b, v[i].o);
    handle signal;
    config timeout = {.option = 2, .of.wide = 50000000};
    const config *list[] = {&timeout, NULL};
    NEED(CALL(SIGNAL_CREATE, backend, list, &signal));
    EXPECT(CALL(SIGNAL_TRIGGER, signal), 9005);
    fill(&n, &v[0], 3);
    NEED(CALL(GRAPH_EXECUTE, n.graph, n.in, (uint32_t)2, n.out, (uint32_t)1, (handle)NULL, signal));
    check(v[0].a, v[0].b, v[0].o);
    NEED(CALL(SIGNAL_FREE, signal));
    NEED(CALL(SIGNAL_CREATE, backend, (handle)NULL, &signal));
    EXPECT(CALL(SIGNAL_TRIGGER, signal), 9001);
    NEED(CALL(SIGNAL_FREE, signal));
    printf("%d executions were told of\n", atomic_load(&told));
    NEED(CALL(CONTEXT_FREE, n.context, (handle)NULL));
}

static void test_memory(void)
{
    network n = build(make_context(0), "g");
    uint8_t *data[3];
    handle mems[3];
    for (int i = 0; i < 3; i++) {
        int fd = memfd_create("client", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (fd < 0 || ftruncate(fd, 4096))
            exit(1);
        data[i] = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        mem_descriptor one = {.n_dims = 4, .dims = dims, .type = 0x0408, .mem_type = i ? 1 : 3};
        if (i)
            one.of.fd = fd;
        else
            one.of.dma.fd = fd, one.of.dma.data = data[i];
        NEED(CALL(MEM_REGISTER, n.context, &one, (uint32_t)1, &mems[i]));
        tensor *t = i < 2 ? &n.in[i] : &n.out[0];
        t->mem_type = 1, t->mem = mems[i];
        close(fd);
    }
    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < N; i++)
            data[0][i] = (uint8_t)(i * 3 + turn), data[1][i] = (uint8_t)(200 - i);
        NEED(run(&n));
        check(data[0], data[1], data[2]);
    }
    n.in[0].mem = (handle)0x1234;
    EXPECT(run(&n), 8001);
    NEED(CALL(MEM_DEREGISTER, mems, (uint32_t)3));
    EXPECT(CALL(MEM_DEREGISTER, mems, (uint32_t)3), 8001);
    NEED(CALL(CONTEXT_FREE, n.context, (handle)NULL));
}

static atomic_int graphs_told, contexts_told;
static handle told_context[2];

static void created(handle context, handle graph, const char *name, uint32_t kind, void *param, word status)
{
    if (status || (kind == 0 && (!graph || strcmp(name, "g"))))
        atomic_fetch_add(&failed, 1);
    if (kind)
        told_context[(size_t)param] = context;
    atomic_fetch_add(kind ? &contexts_told : &graphs_told, 1);
}

static void test_binaries(void)
{
    network n = build(make_context(0), "g");
    word size, written;
    EXPECT(CALL(CONTEXT_GET_SIZE, n.context, (handle)NULL), 5000);
    NEED(CALL(CONTEXT_GET_SIZE, n.context, &size));
    char *blob = malloc(size + 1);
    EXPECT(CALL(CONTEXT_GET_BINARY, n.context, blob, size - 1, &written), 5007);
    NEED(CALL(CONTEXT_GET_BINARY, n.context, blob + 1, size, &written));
    NEED(CALL(CONTEXT_FREE, n.context, (handle)NULL));
    NEED(CALL(CONTEXT_FROM_BINARY, backend, device, (handle)NULL, blob + 1, written, &n.context, (handle)NULL));
    NEED(CALL(GRAPH_RETRIEVE, n.context, "g", &n.graph));
    EXPECT(CALL(GRAPH_RETRIEVE, n.context, "h", &told_context[0]), 6002);
    values v;
    fill(&n, &v, 5);
    NEED(run(&n));
    check(v.a, v.b, v.o);
    NEED(CALL(CONTEXT_FREE, n.context, (handle)NULL));
    context_params params[2] = {{1, NULL, blob + 1, written, NULL, created, (void *)0},
                                {1, NULL, blob + 1, written, NULL, created, (void *)1}};
    const context_params *list[] = {&params[0], &params[1], NULL};
    struct timespec a_while = {0, 1000000};
    NEED(CALL(LIST_ASYNC, backend, device, list, (handle)NULL, (handle)NULL));
    for (int patience = 30000; patience && atomic_load(&contexts_told) < 2; patience--)
        nanosleep(&a_while, NULL);
    EXPECT(atomic_load(&graphs_told), 2);
    EXPECT(atomic_load(&failed), 0);
    for (int i = 0; i < 2; i++) {
        NEED(CALL(GRAPH_RETRIEVE, told_context[i], "g", &n.graph));
        fill(&n, &v, 6 + i);
        NEED(run(&n));
        check(v.a, v.b, v.o);
        NEED(CALL(CONTEXT_FREE, told_context[i], (handle)NULL));
    }
    blob[size / 2] ^= 1;
    handle none;
    word code = CALL(CONTEXT_FROM_BINARY, backend, device, (handle)NULL, blob + 1, written, &none, (handle)NULL);
    if (!code)
        exit((fprintf(stderr, "a damaged binary was accepted\n"), 1));
    free(blob);
}

static int rounds = 3;

static void *work(void *seed)
{
    for (int i = 0; i < rounds; i++) {
        network n = build(make_context(0), "g");
        values v;
        for (int j = 0; j < 5; j++) {
            fill(&n, &v, (int)(size_t)seed + j);
            NEED(run(&n));
            check(v.a, v.b, v.o);
        }
        NEED(CALL(CONTEXT_FREE, n.context, (handle)NULL));
    }
    return NULL;
}

static void test_threads(void)
{
    pthread_t threads[8];
    for (size_t i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    printf("8 threads, %d contexts each\n", rounds);
}

static void test_fork(void)
{
    network n = build(make_context(0), "g");
    values v;
    fill(&n, &v, 1);
    NEED(run(&n));
    pid_t child = fork();
    if (!child) {
        /* Nothing of the library works here, and nothing crashes or hangs. */
        word code = run(&n);
        word freed = CALL(CONTEXT_FREE, n.context, (handle)NULL);
        _exit(code == 1011 && freed == 0 ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    EXPECT((word)status, 0);
    NEED(run(&n));
    check(v.a, v.b, v.o);
    NEED(CALL(CONTEXT_FREE, n.context, (handle)NULL));
}

static void free_late(void)
{
    word code = CALL(CONTEXT_FREE, the_log, (handle)NULL);
    if (code)
        _exit(9);
}

/* Whatever is alive when the program ends, and calls that come after. */
static void test_exit(void)
{
    atexit(free_late);
    load(getenv("CLIENT_LIBRARY"));
    network n = build(make_context(8), "g");
    values v;
    fill(&n, &v, 1);
    NEED(run(&n));
    exit(0);
}

int main(int count, char **words)
{
    if (count < 3)
        return 2;
    static const struct { const char *name; void (*test)(void); } tests[] = {
        {"plain", test_plain}, {"async", test_async}, {"memory", test_memory}, {"binaries", test_binaries},
        {"threads", test_threads}, {"fork", test_fork}};
    setenv("CLIENT_LIBRARY", words[1], 1);
    if (count > 3)
        rounds = atoi(words[3]);
    if (!strcmp(words[2], "exit"))
        test_exit();
    for (unsigned i = 0; i < sizeof tests / sizeof *tests; i++)
        if (!strcmp(words[2], tests[i].name)) {
            load(words[1]);
            tests[i].test();
            unload();
            return 0;
        }
    return 2;
}
