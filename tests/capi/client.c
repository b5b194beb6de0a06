/* A QNN client in C, written from our own declarations. It knows nothing of Python.

   usage: client LIBRARY TEST [ROUNDS] */
#define _GNU_SOURCE
#include <alloca.h>
#include <dirent.h>
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

typedef struct { uint32_t kind; word size; union { uint32_t address; struct { int32_t fd; word offset; } place; } of; } htp_memory;
typedef struct { word offset, size; uint8_t mapped; } data_request;
typedef struct { int32_t fd; void *data; } dma_buffer;
typedef struct { dma_buffer dma; word start, aligned; } dma_response;
typedef struct { dma_buffer dma; word size; } dma_mem;
typedef struct {
    uint32_t kind, pad, version;
    word (*provide)(data_request, dma_response *, void *);
    word (*release)(dma_mem, void *);
    void *param;
} binary_callback;
typedef struct { uint32_t version, pad, mem_type; struct { void *data; word size; } buffer; } context_buffer;
typedef struct { uint32_t option; word value; } htp_property;
typedef struct { uint32_t option, body[16]; } power_config;
typedef struct {
    uint32_t kind;
    word (*create)(uint32_t, uint32_t, uint32_t *), (*destroy)(uint32_t);
    word (*set)(uint32_t, const power_config **), (*memory)(uint32_t, uint32_t, void *);
} infrastructure;

_Static_assert(sizeof(htp_memory) == 32 && sizeof(dma_response) == 32 && sizeof(dma_mem) == 24, "layouts");
_Static_assert(sizeof(binary_callback) == 40 && sizeof(context_buffer) == 32 && sizeof(htp_property) == 16, "layouts");
_Static_assert(sizeof(tensor) == 144 && sizeof(op_config) == 80 && sizeof(mem_descriptor) == 48, "layouts");
_Static_assert(sizeof(context_params) == 56 && sizeof(config) == 16 && sizeof(quantization) == 40, "layouts");

enum { BACKEND_CREATE = 1, REGISTER_PACKAGE = 5, BACKEND_FREE = 8, CONTEXT_CREATE, CONTEXT_GET_SIZE = 11, CONTEXT_GET_BINARY,
       CONTEXT_FROM_BINARY, CONTEXT_FREE, GRAPH_CREATE, GRAPH_ADD_NODE = 18, GRAPH_FINALIZE, GRAPH_RETRIEVE,
       GRAPH_EXECUTE, GRAPH_EXECUTE_ASYNC, TENSOR_CREATE = 24, LOG_CREATE, LOG_FREE = 27, MEM_REGISTER = 35,
       MEM_DEREGISTER, DEVICE_INFRASTRUCTURE = 39, DEVICE_CREATE, DEVICE_FREE = 43, SIGNAL_CREATE, SIGNAL_TRIGGER = 46, SIGNAL_FREE,
       GRAPH_PROPERTY = 53, LIST_ASYNC = 56, SECTION_SIZE = 59, GET_SECTION, APPLY_SECTION, BACKEND_PROPERTY,
       CONTEXT_PROPERTY, GET_INCREMENT, RELEASE_INCREMENT, FROM_CALLBACK = 68 };

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

static long milliseconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Finds the library's functions and calls none of them. */
static void look(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    word (*providers)(void ****, uint32_t *) = (word(*)(void ****, uint32_t *))dlsym(library, "QnnInterface_getProviders");
    void ***list;
    uint32_t count;
    NEED(providers(&list, &count));
    table = (void **)list[0] + 5;
}

static void begin_client(void)
{
    long wall = milliseconds(CLOCK_MONOTONIC), computed = milliseconds(CLOCK_PROCESS_CPUTIME_ID);
    NEED(CALL(LOG_CREATE, count_line, (uint32_t)3, &the_log));
    wall = milliseconds(CLOCK_MONOTONIC) - wall, computed = milliseconds(CLOCK_PROCESS_CPUTIME_ID) - computed;
    printf("started in %ld ms, %ld ms of them computing\n", wall, computed);
    NEED(CALL(BACKEND_CREATE, the_log, (handle)NULL, &backend));
    NEED(CALL(DEVICE_CREATE, the_log, (handle)NULL, &device));
}

static void load(const char *path)
{
    look(path);
    begin_client();
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

/* Adds two tensors, the second of which may be data that can be exchanged later. */
static network build_with(handle context, const char *name, void *updateable)
{
    network n = {.context = context};
    n.in[0] = make_tensor("a", 0, 0.02f), n.in[1] = make_tensor("b", 0, 0.02f), n.out[0] = make_tensor("o", 1, 0.04f);
    if (updateable)
        n.in[1].kind = 6, n.in[1].buffer.data = updateable, n.in[1].buffer.size = N;
    NEED(CALL(GRAPH_CREATE, context, name, (handle)NULL, &n.graph));
    for (int i = 0; i < 2; i++)
        NEED(CALL(TENSOR_CREATE, n.graph, &n.in[i]));
    NEED(CALL(TENSOR_CREATE, n.graph, &n.out[0]));
    op_config add = {1, "add", "qti.aisw", "ElementWiseAdd", 0, NULL, 2, n.in, 1, n.out};
    NEED(((word(*)(handle, op_config))table[GRAPH_ADD_NODE])(n.graph, add));
    NEED(CALL(GRAPH_FINALIZE, n.graph, (handle)NULL, (handle)NULL));
    return n;
}

static network build(handle context, const char *name)
{
    return build_with(context, name, NULL);
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
    EXPECT(run(&n), 6004);
    NEED(CALL(MEM_DEREGISTER, mems, (uint32_t)3));
    EXPECT(CALL(MEM_DEREGISTER, mems, (uint32_t)3), 8001);
    NEED(CALL(CONTEXT_FREE, n.context, (handle)NULL));
}

/* Three tensors in one buffer, each at its offset; what the client writes there is what the device reads. */
static void test_shared_buffer(void)
{
    network n = build(make_context(0), "g");
    int fd = memfd_create("client", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, 3 * 4096))
        exit(1);
    uint8_t *data = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    htp_memory places[3];
    mem_descriptor list[3];
    handle mems[3];
    for (int i = 0; i < 3; i++) {
        places[i] = (htp_memory){.kind = 1, .size = 3 * 4096, .of.place = {fd, (word)i * 4096}};
        list[i] = (mem_descriptor){.n_dims = 4, .dims = dims, .type = 0x0408, .mem_type = 2, .of.custom = &places[i]};
    }
    places[2].of.place.offset = 3 * 4096 - N + 1;
    EXPECT(CALL(MEM_REGISTER, n.context, list, (uint32_t)3, mems), 8004); /* past the end: none of them */
    places[2].of.place.offset = 2 * 4096;
    NEED(CALL(MEM_REGISTER, n.context, list, (uint32_t)3, mems));
    for (int i = 0; i < 3; i++) {
        tensor *t = i < 2 ? &n.in[i] : &n.out[0];
        t->mem_type = 1, t->mem = mems[i];
    }
    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < N; i++)
            data[i] = (uint8_t)(i * 5 + turn), data[4096 + i] = (uint8_t)(100 + i + turn);
        NEED(run(&n));
        check(data, data + 4096, data + 8192);
    }
    for (int i = 0; i < N; i++)
        data[i] = (uint8_t)(255 - i);
    static atomic_int done;
    struct timespec a_while = {0, 1000000};
    NEED(CALL(GRAPH_EXECUTE_ASYNC, n.graph, n.in, (uint32_t)2, n.out, (uint32_t)1, (handle)NULL, (handle)NULL, notify,
              &done));
    for (int patience = 30000; patience && !atomic_load(&done); patience--)
        nanosleep(&a_while, NULL);
    EXPECT(atomic_load(&done), 1);
    check(data, data + 4096, data + 8192);
    NEED(CALL(MEM_DEREGISTER, mems, (uint32_t)1));
    EXPECT(run(&n), 6004);
    NEED(CALL(MEM_DEREGISTER, mems + 1, (uint32_t)2));
    NEED(CALL(MEM_REGISTER, n.context, list, (uint32_t)1, mems)); /* all were given back, so it can be had again */
    NEED(CALL(CONTEXT_FREE, n.context, (handle)NULL));
}

static void test_power(void)
{
    infrastructure *perf = NULL;
    uint32_t id, other;
    NEED(CALL(DEVICE_INFRASTRUCTURE, &perf));
    NEED(perf->create(0, 0, &id));
    EXPECT(perf->create(7, 0, &other), 13001);
    /* DCVS v3: id, enable, mode 16, sleep, then bus and core from turbo to max */
    power_config dcvs = {1, {id, 1, 0, 16, 1, 40, 1, 1, 1, 128, 128, 160, 1, 128, 128, 160}};
    power_config latency = {2, {100}}, polling = {3, {9999}}, unknown = {99, {0}}, late = {3, {10001}};
    const power_config *votes[] = {&dcvs, &latency, &polling, NULL}, *bad[] = {&latency, &unknown, NULL};
    const power_config *too_long[] = {&late, NULL}, *none[] = {NULL};
    NEED(perf->set(id, votes));
    EXPECT(perf->set(id, bad), 13002);
    EXPECT(perf->set(id, too_long), 13001);
    EXPECT(perf->set(id, none), 13001);
    EXPECT(perf->set(id + 100, votes), 13001);
    /* The votes hold on the device process that a context with a queue moves to, too. */
    network n = build(make_context(8), "g");
    values v;
    fill(&n, &v, 4);
    NEED(run(&n));
    check(v.a, v.b, v.o);
    dcvs.body[13] = 160, dcvs.body[14] = 128; /* the lowest above the target */
    const power_config *crooked[] = {&dcvs, NULL};
    EXPECT(perf->set(id, crooked), 13001);
    NEED(perf->destroy(id));
    EXPECT(perf->destroy(id), 0);
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
    /* A signal that has run out ends the creations that are not over. */
    handle signal;
    config soon = {.option = 2, .of.wide = 1};
    const config *in_a_moment[] = {&soon, NULL};
    NEED(CALL(SIGNAL_CREATE, backend, in_a_moment, &signal));
    atomic_store(&contexts_told, 0), atomic_store(&failed, 0);
    NEED(CALL(LIST_ASYNC, backend, device, list, (handle)NULL, signal));
    for (int patience = 30000; patience && atomic_load(&contexts_told) < 2; patience--)
        nanosleep(&a_while, NULL);
    EXPECT(atomic_load(&contexts_told), 2);
    for (int i = 0; i < 2; i++)
        if (told_context[i])
            CALL(CONTEXT_FREE, told_context[i], (handle)NULL);
    NEED(CALL(SIGNAL_FREE, signal));
    blob[size / 2] ^= 1;
    handle none;
    word code = CALL(CONTEXT_FROM_BINARY, backend, device, (handle)NULL, blob + 1, written, &none, (handle)NULL);
    if (!code)
        exit((fprintf(stderr, "a damaged binary was accepted\n"), 1));
    free(blob);
}

/* ---- weights in buffers of ours ---- */

enum { BIG = 64 * 1024 };
static char *whole;
static atomic_int provided, released;

static word provide(data_request wanted, dma_response *answer, void *param)
{
    int fd = memfd_create("weights", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || param != (void *)7 || wanted.offset % 4096 || ftruncate(fd, (off_t)wanted.size))
        return 1;
    answer->dma.fd = fd;
    answer->dma.data = mmap(NULL, wanted.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    memcpy(answer->dma.data, whole + wanted.offset, wanted.size);
    memset(whole + wanted.offset, 0, wanted.size); /* so that only our buffer has them */
    answer->aligned = wanted.size;
    atomic_fetch_add(&provided, 1);
    return 0;
}

static word refuse(data_request wanted, dma_response *answer, void *param)
{
    return 1002;
}

static word release(dma_mem given, void *param)
{
    munmap(given.dma.data, given.size);
    close(given.dma.fd);
    atomic_fetch_add(&released, 1);
    return param == (void *)7 ? 0 : 1;
}

static network build_large(handle context, uint8_t *weights)
{
    static uint32_t wide[4] = {1, 16, 64, 64};
    network n = {.context = context};
    n.in[0] = make_tensor("a", 0, 0.02f), n.in[1] = make_tensor("b", 4, 0.02f), n.out[0] = make_tensor("o", 1, 0.04f);
    n.in[0].dims = n.in[1].dims = n.out[0].dims = wide;
    n.in[1].buffer.data = weights, n.in[1].buffer.size = BIG;
    NEED(CALL(GRAPH_CREATE, context, "g", (handle)NULL, &n.graph));
    for (int i = 0; i < 2; i++)
        NEED(CALL(TENSOR_CREATE, n.graph, &n.in[i]));
    NEED(CALL(TENSOR_CREATE, n.graph, &n.out[0]));
    op_config add = {1, "add", "qti.aisw", "ElementWiseAdd", 0, NULL, 2, n.in, 1, n.out};
    NEED(((word(*)(handle, op_config))table[GRAPH_ADD_NODE])(n.graph, add));
    NEED(CALL(GRAPH_FINALIZE, n.graph, (handle)NULL, (handle)NULL));
    return n;
}

static void test_callback(void)
{
    static uint8_t weights[BIG], a[BIG], o[BIG];
    for (int i = 0; i < BIG; i++)
        weights[i] = (uint8_t)(i * 31 + i / 256), a[i] = (uint8_t)(i * 17);
    network n = build_large(make_context(0), weights);
    /* The binary in pieces, put together again. */
    const char *piece;
    word offset, size, written, total = 0;
    NEED(CALL(CONTEXT_GET_SIZE, n.context, &size));
    whole = malloc(size);
    for (;;) {
        NEED(CALL(GET_INCREMENT, n.context, &piece, &offset, &written));
        if (!written)
            break;
        memcpy(whole + offset, piece, written);
        total += written;
        EXPECT(CALL(RELEASE_INCREMENT, n.context, piece + 1, offset), 5014);
        NEED(CALL(RELEASE_INCREMENT, n.context, piece, offset));
        EXPECT(CALL(RELEASE_INCREMENT, n.context, piece, offset), 5014);
    }
    EXPECT(total, size);
    htp_property sizes[3] = {{1, 0}, {2, ~0ul}, {3, 0}}, odd = {44, 0};
    config asked[4] = {{0, {sizes}}, {0, {sizes + 1}}, {0, {sizes + 2}}, {0, {&odd}}};
    config *all[] = {&asked[0], &asked[1], &asked[2], NULL}, *unknown[] = {&asked[3], NULL};
    NEED(CALL(CONTEXT_PROPERTY, n.context, all));
    EXPECT(sizes[0].value, 4096);
    if (sizes[1].value == ~0ul || sizes[2].value < BIG || sizes[2].value > 16 * BIG)
        exit((fprintf(stderr, "odd properties\n"), 1));
    EXPECT(CALL(CONTEXT_PROPERTY, n.context, unknown), 1000);
    EXPECT(CALL(GRAPH_PROPERTY, n.graph, all), 1000);
    EXPECT(CALL(BACKEND_PROPERTY, backend, all), 4003);
    NEED(CALL(CONTEXT_FREE, n.context, (handle)NULL));
    binary_callback callback = {2, 0, 1, refuse, release, (void *)7};
    EXPECT(CALL(FROM_CALLBACK, backend, device, (handle)NULL, &callback, whole, size, &n.context, (handle)NULL,
                (handle)NULL), 1002);
    callback.kind = 1;
    EXPECT(CALL(FROM_CALLBACK, backend, device, (handle)NULL, &callback, whole, size, &n.context, (handle)NULL,
                (handle)NULL), 1000);
    callback.kind = 2, callback.provide = provide;
    NEED(CALL(FROM_CALLBACK, backend, device, (handle)NULL, &callback, whole, size, &n.context, (handle)NULL,
              (handle)NULL));
    if (!atomic_load(&provided) || atomic_load(&released))
        exit((fprintf(stderr, "%d provided, %d released\n", atomic_load(&provided), atomic_load(&released)), 1));
    NEED(CALL(GRAPH_RETRIEVE, n.context, "g", &n.graph));
    n.in[0].buffer.data = a, n.in[0].buffer.size = BIG, n.out[0].buffer.data = o, n.out[0].buffer.size = BIG;
    NEED(CALL(GRAPH_EXECUTE, n.graph, n.in, (uint32_t)1, n.out, (uint32_t)1, (handle)NULL, (handle)NULL));
    for (int i = 0; i < BIG; i += N)
        check(a + i, weights + i, o + i);
    NEED(CALL(CONTEXT_FREE, n.context, (handle)NULL));
    EXPECT(atomic_load(&released), atomic_load(&provided));
    printf("%d buffers provided and given back\n", atomic_load(&released));
    EXPECT(CALL(REGISTER_PACKAGE, backend, "libNone.so", "provider", (handle)NULL), 4005);
    free(whole);
}

static void test_sections(void)
{
    uint8_t first[N], second[N];
    for (int i = 0; i < N; i++)
        first[i] = (uint8_t)(3 * i), second[i] = (uint8_t)(255 - i);
    network n = build_with(make_context(0), "g", first), m = build_with(make_context(0), "g", second);
    word size, written;
    NEED(CALL(SECTION_SIZE, m.context, m.graph, (uint32_t)1, &size));
    context_buffer section = {1, 0, 0, {malloc(size), size}};
    section.buffer.size--;
    EXPECT(CALL(GET_SECTION, m.context, m.graph, (uint32_t)1, &section, &written, (handle)NULL, (handle)NULL), 5007);
    section.buffer.size++;
    NEED(CALL(GET_SECTION, m.context, m.graph, (uint32_t)1, &section, &written, (handle)NULL, (handle)NULL));
    values v;
    for (int turn = 0; turn < 2; turn++) {
        fill(&n, &v, turn);
        NEED(CALL(GRAPH_EXECUTE, n.graph, n.in, (uint32_t)1, n.out, (uint32_t)1, (handle)NULL, (handle)NULL));
        check(v.a, turn ? second : first, v.o);
        NEED(CALL(APPLY_SECTION, n.context, n.graph, (uint32_t)1, &section, (handle)NULL, (handle)NULL));
    }
    EXPECT(CALL(APPLY_SECTION, m.context, n.graph, (uint32_t)1, &section, (handle)NULL, (handle)NULL), 6001);
    NEED(CALL(CONTEXT_FREE, n.context, (handle)NULL));
    NEED(CALL(CONTEXT_FREE, m.context, (handle)NULL));
    free(section.buffer.data);
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

/* ---- threads with little stack ---- */

static void *find_providers(void *path)
{
    void ***list;
    uint32_t count;
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    word (*providers)(void ****, uint32_t *) = (word(*)(void ****, uint32_t *))dlsym(library, "QnnInterface_getProviders");
    return (void *)providers(&list, &count);
}

static void *run_once(void *n)
{
    return (void *)run(n);
}

typedef struct {
    void *(*task)(void *);
    void *param;
    size_t eaten;
} hungry;

static void *with_less_stack(void *param)
{
    const hungry *call = param;
    volatile char *eaten = alloca(call->eaten + 1);
    *eaten = 0;
    return call->task(call->param);
}

/* AArch64 has no stacks below 128 KiB: of a larger one as much is used up as leaves so many. */
static word on_a_stack(int kib, void *(*task)(void *), void *param)
{
    enum { LARGER_KIB = 512 };
    hungry call = {task, param, 0};
    pthread_attr_t attributes;
    pthread_t thread;
    void *code;
    pthread_attr_init(&attributes);
    if (pthread_attr_setstacksize(&attributes, (size_t)kib * 1024)) {
        call.eaten = (size_t)(LARGER_KIB - kib) * 1024;
        NEED(pthread_attr_setstacksize(&attributes, LARGER_KIB * 1024));
    }
    NEED(pthread_create(&thread, &attributes, with_less_stack, &call));
    NEED(pthread_join(thread, &code));
    pthread_attr_destroy(&attributes);
    return (word)code;
}

/* A stack on which Python would end the process is refused, also by the first call of all. */
static void test_small_stacks(void)
{
    EXPECT(on_a_stack(16, find_providers, getenv("CLIENT_LIBRARY")), 1002);
    load(getenv("CLIENT_LIBRARY"));
    network n = build(make_context(0), "g");
    values v;
    for (int kib = 16; kib <= 256; kib *= 2) {
        fill(&n, &v, kib);
        EXPECT(on_a_stack(kib, run_once, &n), kib < 64 ? 1002 : 0);
        if (kib >= 64)
            check(v.a, v.b, v.o);
    }
    NEED(CALL(CONTEXT_FREE, n.context, (handle)NULL));
    unload();
    exit(0);
}

/* ---- for a while ---- */

static int count_entries(const char *folder)
{
    DIR *open_folder = opendir(folder);
    int count = 0;
    while (open_folder && readdir(open_folder))
        count++;
    if (open_folder)
        closedir(open_folder);
    return count;
}

static long resident_kb(void)
{
    long pages = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file && fscanf(file, "%ld %ld", &pages, &resident) != 2)
        resident = 0;
    if (file)
        fclose(file);
    return resident * 4;
}

static atomic_int contexts_made;
static time_t until;

static void *work_on(void *seed)
{
    while (time(NULL) < until) {
        work(seed);
        atomic_fetch_add(&contexts_made, rounds);
    }
    return NULL;
}

/* Eight threads make contexts, run and free them for so many seconds; nothing may be left behind. */
static void test_stress(void)
{
    int seconds = rounds;
    long settled = 0;
    rounds = 1;
    work((void *)1);
    int before = count_entries("/proc/self/fd");
    for (int half = 0; half < 2; half++) {
        pthread_t threads[8];
        until = time(NULL) + (seconds + 1) / 2;
        for (size_t i = 0; i < 8; i++)
            pthread_create(&threads[i], NULL, work_on, (void *)i);
        for (int i = 0; i < 8; i++)
            pthread_join(threads[i], NULL);
        if (!half)
            settled = resident_kb();
    }
    int after = count_entries("/proc/self/fd");
    printf("8 threads, %d contexts, descriptors %d before and %d after, memory %ld MB half way and %ld MB at the end\n",
           atomic_load(&contexts_made), before, after, settled / 1024, resident_kb() / 1024);
    if (after > before || resident_kb() > settled + settled / 4 + 20000)
        exit((fprintf(stderr, "something was left behind\n"), 1));
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

/* A host that looks at the library, and forks before it uses it: both can. */
static void test_early_fork(void)
{
    pid_t child = fork();
    if (!child)
        alarm(120);
    begin_client();
    network n = build(make_context(0), "g");
    values v;
    fill(&n, &v, 1);
    NEED(run(&n));
    check(v.a, v.b, v.o);
    NEED(CALL(CONTEXT_FREE, n.context, (handle)NULL));
    if (!child)
        _exit(0);
    int status;
    waitpid(child, &status, 0);
    EXPECT((word)status, 0);
}

static void free_late(void)
{
    word code = table ? CALL(CONTEXT_FREE, the_log, (handle)NULL) : 0;
    if (code)
        _exit(9);
}

/* Whatever is alive or queued when the program ends, and calls that come after. */
static void test_exit(void)
{
    atexit(free_late);
    load(getenv("CLIENT_LIBRARY"));
    network n = build(make_context(8), "g");
    static values v;
    fill(&n, &v, 1);
    NEED(run(&n));
    for (int i = 0; i < 6; i++)
        NEED(CALL(GRAPH_EXECUTE_ASYNC, n.graph, n.in, (uint32_t)2, n.out, (uint32_t)1, (handle)NULL, (handle)NULL,
                  (handle)NULL, (handle)NULL));
    exit(0);
}

int main(int count, char **words)
{
    if (count < 3)
        return 2;
    static const struct { const char *name; void (*test)(void); } tests[] = {
        {"plain", test_plain}, {"async", test_async}, {"memory", test_memory}, {"binaries", test_binaries},
        {"shared_buffer", test_shared_buffer}, {"power", test_power}, {"callback", test_callback},
        {"sections", test_sections}, {"stress", test_stress}, {"threads", test_threads}, {"fork", test_fork}};
    setenv("CLIENT_LIBRARY", words[1], 1);
    if (count > 3)
        rounds = atoi(words[3]);
    if (!strcmp(words[2], "exit"))
        test_exit();
    if (!strcmp(words[2], "small_stacks"))
        test_small_stacks();
    if (!strcmp(words[2], "early_fork")) {
        look(words[1]);
        test_early_fork();
        unload();
        return 0;
    }
    for (unsigned i = 0; i < sizeof tests / sizeof *tests; i++)
        if (!strcmp(words[2], tests[i].name)) {
            load(words[1]);
            tests[i].test();
            unload();
            return 0;
        }
    return 2;
}
