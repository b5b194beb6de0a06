/* Sessions of ONNX Runtime by its C interface, which can do what its Python package cannot: make several at the same
 * time, and share between sessions what the kernels made of weights.
 *
 * The runtime is the one that the Python package has loaded. It hands its function table, and the options that are
 * being filled in, to every library of custom operators; this is one, without operators. Functions are named by their
 * places in that table, to which the runtime only ever adds. Nothing here knows Python; engine/native.py does.
 *
 * At the end, and apart from sessions: stored weights of half precision are widened, and flat mirrors of native KV
 * caches follow them. */
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#define API __attribute__((visibility("default")))
#define MOST_SIZES 16

/* Places in the table. Its version 8 was the first to have all of them. */
enum {
    TABLE_VERSION = 8,
    CREATE_STATUS = 0,
    GET_ERROR_MESSAGE = 2,
    CREATE_ENV = 3,
    CREATE_SESSION = 8,
    COUNT_INPUTS = 30,
    COUNT_OUTPUTS = 31,
    INPUT_TYPE = 33,
    OUTPUT_TYPE = 34,
    INPUT_NAME = 36,
    OUTPUT_NAME = 37,
    TENSOR_WITH_DATA = 49,
    TENSOR_TYPE_OF = 55,
    ELEMENT_TYPE = 60,
    COUNT_SIZES = 61,
    SIZES = 62,
    SYMBOLIC_SIZES = 63,
    CPU_MEMORY = 69,
    ALLOCATOR_FREE = 76,
    DEFAULT_ALLOCATOR = 78,
    RELEASE_STATUS = 93,
    RELEASE_SESSION = 95,
    RELEASE_VALUE = 96,
    RELEASE_TYPE = 98,
    RUN_WITH_BINDING = 133,
    CREATE_BINDING = 134,
    RELEASE_BINDING = 135,
    BIND_INPUT = 136,
    BIND_OUTPUT = 137,
    CREATE_CONTAINER = 166,
    RELEASE_CONTAINER = 167,
    CREATE_SHARING_SESSION = 169,
};
enum { ARENA = 1, DEFAULT_MEMORY = 0, ERRORS_ONLY = 3, RUNTIME_FAILED = 1 };

struct base {
    void *const *(*table)(uint32_t version);
    const char *(*version)(void);
};

/* A tensor as DLPack describes it. */
struct managed {
    void *data;
    int32_t device_type, device;
    int32_t rank;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *sizes, *strides;
    uint64_t offset;
    void *context;
    void (*done)(struct managed *);
};

/* Data that the runtime was given to read where it lies, until it says that it needs it no more. */
struct loan {
    struct managed tensor;
    int64_t sizes[MOST_SIZES];
    atomic_int sides; /* who still has it: the runtime, and whoever asks */
};

struct end {
    const char *name;
    void *data;
    size_t nbytes;
    const int64_t *sizes;
    size_t rank;
    int32_t type;
    int32_t is_output;
};

struct description {
    char *name;
    void *type_info; /* owns the symbols */
    int32_t type;
    int32_t rank;
    int64_t sizes[MOST_SIZES];
    const char *symbols[MOST_SIZES];
};

struct bound {
    void *session;
    void *binding;
};

typedef void *status;
static const struct base *base;
static _Thread_local void *options;
static void *const *table;
static void *environment;
static void *cpu;
static void *names;

#define CALL(place, ...) ((status(*)(__VA_ARGS__))table[place])
#define RELEASE(place, object) ((void (*)(void *))table[place])(object)

API void *RegisterCustomOps(void *filled_in, const struct base *given)
{
    options = filled_in;
    base = given;
    return NULL;
}

/* 0 if sessions can be made; 1 if the runtime is too old, or was never told about this library. */
API int openhtp_begin(void)
{
    if (table)
        return 0;
    void *const *found = base ? base->table(TABLE_VERSION) : NULL;
    if (!found)
        return 1;
    table = found;
    if (CALL(CREATE_ENV, int, const char *, void **)(ERRORS_ONLY, "openhtp", &environment) ||
        CALL(CPU_MEMORY, int, int, void **)(ARENA, DEFAULT_MEMORY, &cpu) ||
        CALL(DEFAULT_ALLOCATOR, void **)(&names)) {
        table = NULL;
        return 1;
    }
    return 0;
}

API const char *openhtp_words(status failed)
{
    return ((const char *(*)(status))table[GET_ERROR_MESSAGE])(failed);
}

API void openhtp_forget(status failed)
{
    RELEASE(RELEASE_STATUS, failed);
}

static status no_memory(void)
{
    return CALL(CREATE_STATUS, int, const char *)(RUNTIME_FAILED, "no memory");
}

static void let_go(struct loan *loan)
{
    if (atomic_fetch_sub(&loan->sides, 1) == 1)
        free(loan);
}

static void runtime_is_done(struct managed *tensor)
{
    let_go((struct loan *)tensor);
}

/* To be given to the runtime as a tensor of DLPack, and then to ``openhtp_settle``. */
API struct loan *openhtp_lend(void *data, const int64_t *sizes, int rank, int code, int bits)
{
    struct loan *loan = rank <= MOST_SIZES ? calloc(1, sizeof *loan) : NULL;
    if (!loan)
        return NULL;
    memcpy(loan->sizes, sizes, (size_t)rank * sizeof *sizes);
    loan->tensor = (struct managed){.data = data, .device_type = 1, .rank = rank, .code = (uint8_t)code,
                                    .bits = (uint8_t)bits, .lanes = 1, .sizes = loan->sizes, .done = runtime_is_done};
    atomic_init(&loan->sides, 2);
    return loan;
}

/* Whether the runtime still reads the data; it is asked once. */
API int openhtp_settle(struct loan *loan)
{
    int sides = atomic_load(&loan->sides);
    let_go(loan);
    return sides > 1;
}

/* The session of a model as it is. Its options are those that this thread told about this library last. */
API status openhtp_make(const void *model, size_t nbytes, void *container, void **made)
{
    if (container)
        return CALL(CREATE_SHARING_SESSION, void *, const void *, size_t, void *, void *, void **)(
            environment, model, nbytes, options, container, made);
    return CALL(CREATE_SESSION, void *, const void *, size_t, void *, void **)(environment, model, nbytes, options,
                                                                               made);
}

API void openhtp_release_session(void *session)
{
    RELEASE(RELEASE_SESSION, session);
}

API status openhtp_count(void *session, int outputs, size_t *count)
{
    return CALL(outputs ? COUNT_OUTPUTS : COUNT_INPUTS, void *, size_t *)(session, count);
}

API void openhtp_forget_description(struct description *told)
{
    if (told->name)
        CALL(ALLOCATOR_FREE, void *, void *)(names, told->name);
    if (told->type_info)
        RELEASE(RELEASE_TYPE, told->type_info);
    memset(told, 0, sizeof *told);
}

/* Name, type and sizes of an input or output; to be forgotten afterwards, also if it failed. */
API status openhtp_describe(void *session, int output, size_t place, struct description *told)
{
    const void *tensor = NULL;
    size_t rank = 0;
    int type = 0;
    memset(told, 0, sizeof *told);
    status failed = CALL(output ? OUTPUT_NAME : INPUT_NAME, void *, size_t, void *, char **)(session, place,
                                                                                            names, &told->name);
    if (!failed)
        failed = CALL(output ? OUTPUT_TYPE : INPUT_TYPE, void *, size_t, void **)(session, place,
                                                                                 &told->type_info);
    if (!failed)
        failed = CALL(TENSOR_TYPE_OF, void *, const void **)(told->type_info, &tensor);
    if (!failed && !tensor)
        failed = CALL(CREATE_STATUS, int, const char *)(RUNTIME_FAILED, "an end is no tensor");
    if (!failed)
        failed = CALL(ELEMENT_TYPE, const void *, int *)(tensor, &type);
    if (!failed)
        failed = CALL(COUNT_SIZES, const void *, size_t *)(tensor, &rank);
    if (!failed && rank > MOST_SIZES)
        failed = CALL(CREATE_STATUS, int, const char *)(RUNTIME_FAILED, "an end has too many dimensions");
    if (!failed)
        failed = CALL(SIZES, const void *, int64_t *, size_t)(tensor, told->sizes, rank);
    if (!failed)
        failed = CALL(SYMBOLIC_SIZES, const void *, const char **, size_t)(tensor, told->symbols, rank);
    told->type = type;
    told->rank = (int32_t)rank;
    return failed;
}

API void openhtp_release_bound(struct bound *bound)
{
    if (bound->binding)
        RELEASE(RELEASE_BINDING, bound->binding);
    free(bound);
}

/* Lets a session read and write these places from now on. */
API status openhtp_bind(void *session, const struct end *ends, size_t count, struct bound **made)
{
    struct bound *bound = calloc(1, sizeof *bound);
    if (!bound)
        return no_memory();
    bound->session = session;
    status failed = CALL(CREATE_BINDING, void *, void **)(session, &bound->binding);
    for (size_t i = 0; i < count && !failed; i++) {
        const struct end *end = &ends[i];
        void *value = NULL;
        failed = CALL(TENSOR_WITH_DATA, void *, void *, size_t, const int64_t *, size_t, int, void **)(
            cpu, end->data, end->nbytes, end->sizes, end->rank, end->type, &value);
        if (!failed)
            failed = CALL(end->is_output ? BIND_OUTPUT : BIND_INPUT, void *, const char *, void *)(bound->binding,
                                                                                                  end->name, value);
        if (value)
            RELEASE(RELEASE_VALUE, value);
    }
    if (failed) {
        openhtp_release_bound(bound);
        return failed;
    }
    *made = bound;
    return NULL;
}

API status openhtp_run(struct bound *bound)
{
    return CALL(RUN_WITH_BINDING, void *, const void *, void *)(bound->session, NULL, bound->binding);
}

API status openhtp_create_container(void **made)
{
    return CALL(CREATE_CONTAINER, void **)(made);
}

API void openhtp_release_container(void *container)
{
    RELEASE(RELEASE_CONTAINER, container);
}

/* Numbers of half precision as the floats that they stand for. */
static float widened(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = (uint32_t)(half & 0x7fff) << 13;
    union {
        uint32_t bits;
        float number;
    } value = {.bits = rest};
    if (rest >= 0x0f800000) /* infinite, or no number */
        value.bits = rest + 0x70000000;
    else /* subnormal ones, too, are exact in float */
        value.number *= 0x1p112f;
    value.bits |= sign;
    return value.number;
}

#if defined(__x86_64__)
__attribute__((target("avx,f16c"))) static size_t widen_by_eight(const uint16_t *halves, float *floats, size_t count)
{
    size_t place = 0;
    for (; place + 8 <= count; place += 8)
        _mm256_storeu_ps(floats + place, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(halves + place))));
    return place;
}

/* Asked of the processor itself: the compiler's own question needs a table that some compilers cannot link. */
static int has_wide_halves(void)
{
    unsigned a, b, c, d, saved, high;
    const unsigned needed = bit_OSXSAVE | bit_AVX | bit_F16C;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & needed) != needed)
        return 0;
    __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    return (saved & 6) == 6; /* the system saves the wide registers */
}
#endif

API void openhtp_widen(const uint16_t *halves, float *floats, size_t count)
{
    size_t place = 0;
#if defined(__x86_64__)
    static int wide = -1; /* asked once: under a virtual machine the question takes a while */
    if (wide < 0)
        wide = has_wide_halves();
    if (wide)
        place = widen_by_eight(halves, floats, count);
#endif
    for (; place < count; place++)
        floats[place] = widened(halves[place]);
}

/* A native cache consists of patches of 32 by 32 signed numbers. In a patch, the numbers of one row of the mirror are
 * 4 bytes apart. */
enum { SIDE = 32, PATCH = SIDE * SIDE };

static void untile_patch(const uint8_t *patch, uint8_t *flat, size_t row_bytes)
{
    for (size_t row = 0; row < SIDE; row++) {
        const uint8_t *from = patch + row / 4 * 128 + row % 4;
        uint8_t *to = flat + row * row_bytes;
        for (size_t place = 0; place < SIDE; place++)
            to[place] = from[place * 4] ^ 0x80;
    }
}

/* Lets a flat mirror be what a native cache of some heads holds in its first `blocks` blocks of 32 tokens. `last` is
 * the cache as the mirror shows it, in its first `known` blocks. Keys are [head_dim, context], values the other way. */
API void openhtp_follow(int keys, const uint8_t *native, uint8_t *last, uint8_t *flat, size_t heads, size_t head_dim,
                        size_t context, size_t known, size_t blocks)
{
    for (size_t head = 0; head < heads; head++) {
        size_t begin = head * head_dim * context;
        for (size_t block = 0; block < blocks; block++)
            for (size_t part = 0; part < head_dim / SIDE; part++) {
                size_t at = begin;
                uint8_t *to = flat + begin;
                if (keys) {
                    at += block / 8 * 256 * head_dim + part * 8 * PATCH + block % 8 * PATCH;
                    to += part * SIDE * context + block * SIDE;
                } else {
                    at += part / 2 * 64 * context + block * 2 * PATCH + part % 2 * PATCH;
                    to += block * SIDE * head_dim + part * SIDE;
                }
                if (block < known && !memcmp(native + at, last + at, PATCH))
                    continue;
                memcpy(last + at, native + at, PATCH);
                untile_patch(last + at, to, keys ? context : head_dim);
            }
    }
}
