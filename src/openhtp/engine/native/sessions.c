/* Sessions of ONNX Runtime by its C interface, which can do what its Python package cannot: make several at the same
 * time, and share between sessions what the kernels made of weights.
 *
 * The runtime is the one that the Python package has loaded. It hands its function table, and the options that are
 * being filled in, to every library of custom operators; this is one. Functions are named by their places in that
 * table, to which the runtime only ever adds. Nothing here knows Python; engine/native.py does.
 *
 * Its operators are products of one row of 16-bit numbers with 8-bit ones, which the runtime computes by a dozen nodes,
 * and images in another size (interpolation.c). Executions of one session that follow each other are read from a socket
 * and computed here, too (frames.c).
 *
 * At the end, and apart from sessions: stored weights of half precision are widened, and flat mirrors of native KV
 * caches follow them. */
#define _GNU_SOURCE
#include <poll.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#define API __attribute__((visibility("default")))
#define MOST_SIZES 16
#define SEPARATOR "\xff" /* in no name, as names are UTF-8 */

/* Places in the table. Its version 8 was the first to have all of them. */
enum {
    TABLE_VERSION = 8,
    CREATE_STATUS = 0,
    GET_ERROR_MESSAGE = 2,
    CREATE_ENV = 3,
    CREATE_SESSION = 8,
    CREATE_DOMAIN = 26,
    ADD_TO_DOMAIN = 27,
    ADD_DOMAIN = 28,
    COUNT_INPUTS = 30,
    COUNT_OUTPUTS = 31,
    INPUT_TYPE = 33,
    OUTPUT_TYPE = 34,
    INPUT_NAME = 36,
    OUTPUT_NAME = 37,
    TENSOR_WITH_DATA = 49,
    TENSOR_DATA = 51,
    TENSOR_TYPE_OF = 55,
    ELEMENT_TYPE = 60,
    COUNT_SIZES = 61,
    SIZES = 62,
    SYMBOLIC_SIZES = 63,
    COUNT_ELEMENTS = 64,
    TYPE_AND_SHAPE = 65,
    CPU_MEMORY = 69,
    ALLOCATOR_FREE = 76,
    DEFAULT_ALLOCATOR = 78,
    NUMBER_ATTRIBUTE = 86,
    INPUT_OF = 90,
    OUTPUT_OF = 91,
    RELEASE_STATUS = 93,
    RELEASE_SESSION = 95,
    RELEASE_VALUE = 96,
    RELEASE_TYPE = 98,
    RELEASE_TYPE_AND_SHAPE = 99,
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

struct bound {
    void *session;
    void *binding;
};

typedef void *status;
static const struct base *base;
static _Thread_local void *options;
static _Thread_local int without_operators;
static void *const *table;
static void *environment;
static void *cpu;
static void *names;

#define CALL(place, ...) ((status(*)(__VA_ARGS__))table[place])
#define RELEASE(place, object) ((void (*)(void *))table[place])(object)

static void offer_operators(void *filled_in, void *const *functions);

API void *RegisterCustomOps(void *filled_in, const struct base *given)
{
    options = filled_in;
    base = given;
    if (!without_operators)
        offer_operators(filled_in, given->table(TABLE_VERSION));
    return NULL;
}

/* Whether the next sessions that this thread makes have the operators: a session that knows of them takes the runtime
 * 0.1 ms longer to make, and few need them. */
API void openhtp_need_operators(int needed)
{
    without_operators = !needed;
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

/* A digest of the sources of this library, by which Python sees whether it has to be compiled again. */
#ifndef OPENHTP_SOURCES
#define OPENHTP_SOURCES ""
#endif
API const char openhtp_sources[] = OPENHTP_SOURCES;

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

/* The options that this thread told about this library last. */
API void *openhtp_chosen(void)
{
    return options;
}

API void openhtp_release_session(void *session)
{
    RELEASE(RELEASE_SESSION, session);
}

/* Text of zero-ended fields; what does not fit is only counted. */
struct text {
    char *fields;
    size_t room, used;
};

static void add_bytes(struct text *text, const char *bytes, size_t count)
{
    if (text->used < text->room)
        memcpy(text->fields + text->used, bytes, count < text->room - text->used ? count : text->room - text->used);
    text->used += count;
}

static void add_number(struct text *text, int64_t number)
{
    char digits[24];
    char *first = digits + sizeof digits;
    uint64_t rest = (uint64_t)number; /* sizes and types are never below 0 */
    do
        *--first = (char)('0' + rest % 10);
    while (rest /= 10);
    add_bytes(text, first, (size_t)(digits + sizeof digits - first));
}

/* Adds a field with type and sizes of an end: numbers, each with SEPARATOR before it. Instead of a size that is free
 * there are a question mark and its name. */
static status add_type(const void *tensor, struct text *text)
{
    int64_t sizes[MOST_SIZES];
    const char *symbols[MOST_SIZES];
    size_t rank = 0;
    int type = 0;
    status failed = CALL(ELEMENT_TYPE, const void *, int *)(tensor, &type);
    if (!failed)
        failed = CALL(COUNT_SIZES, const void *, size_t *)(tensor, &rank);
    if (!failed && rank > MOST_SIZES)
        failed = CALL(CREATE_STATUS, int, const char *)(RUNTIME_FAILED, "an end has too many dimensions");
    if (!failed)
        failed = CALL(SIZES, const void *, int64_t *, size_t)(tensor, sizes, rank);
    if (!failed)
        failed = CALL(SYMBOLIC_SIZES, const void *, const char **, size_t)(tensor, symbols, rank);
    if (failed)
        return failed;
    add_number(text, type);
    for (size_t i = 0; i < rank; i++) {
        add_bytes(text, sizes[i] >= 0 ? SEPARATOR : SEPARATOR "?", sizes[i] >= 0 ? 1 : 2);
        if (sizes[i] >= 0)
            add_number(text, sizes[i]);
        else
            add_bytes(text, symbols[i], strlen(symbols[i]));
    }
    add_bytes(text, "", 1);
    return NULL;
}

/* Adds the name, the type and the sizes of an input or output. */
static status add_end(void *session, int output, size_t place, struct text *text)
{
    const void *tensor = NULL;
    void *type_info = NULL; /* owns the symbols */
    char *name = NULL;
    status failed = CALL(output ? OUTPUT_NAME : INPUT_NAME, void *, size_t, void *, char **)(session, place, names,
                                                                                            &name);
    if (!failed) {
        add_bytes(text, name, strlen(name) + 1);
        CALL(ALLOCATOR_FREE, void *, void *)(names, name);
        failed = CALL(output ? OUTPUT_TYPE : INPUT_TYPE, void *, size_t, void **)(session, place, &type_info);
    }
    if (!failed)
        failed = CALL(TENSOR_TYPE_OF, void *, const void **)(type_info, &tensor);
    if (!failed && !tensor)
        failed = CALL(CREATE_STATUS, int, const char *)(RUNTIME_FAILED, "an end is no tensor");
    if (!failed)
        failed = add_type(tensor, text);
    if (type_info)
        RELEASE(RELEASE_TYPE, type_info);
    return failed;
}

/* The inputs of a session and then its outputs, with the number of each before them, where they fit into `fields`;
 * `used` is how many bytes they need. */
API status openhtp_describe(void *session, char *fields, size_t room, size_t *used)
{
    struct text text = {fields, room, 0};
    status failed = NULL;
    for (int output = 0; output < 2 && !failed; output++) {
        size_t count = 0;
        failed = CALL(output ? COUNT_OUTPUTS : COUNT_INPUTS, void *, size_t *)(session, &count);
        if (!failed) {
            add_number(&text, (int64_t)count);
            add_bytes(&text, "", 1);
        }
        for (size_t i = 0; i < count && !failed; i++)
            failed = add_end(session, output, i, &text);
    }
    *used = text.used;
    return failed;
}

/* The session of a model as it is, and what it reads and writes. */
API status openhtp_make(const void *model, size_t nbytes, const void *chosen, void *container, void **made,
                        char *fields, size_t room, size_t *used)
{
    status failed;
    if (container)
        failed = CALL(CREATE_SHARING_SESSION, void *, const void *, size_t, const void *, void *, void **)(
            environment, model, nbytes, chosen, container, made);
    else
        failed = CALL(CREATE_SESSION, void *, const void *, size_t, const void *, void **)(environment, model, nbytes,
                                                                                         chosen, made);
    return failed ? failed : openhtp_describe(*made, fields, room, used);
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

/* Whoever needs the interpreter's lock for a moment to queue an execution, and the thread that is to compute it. Being
 * woken for that lock takes longer than either keeps it, so each lets the other finish. */
struct turns {
    _Atomic int64_t claimed; /* when the computing thread began to need the lock; 0: it does not */
    atomic_int queueing;     /* how many need it to queue something */
};

static struct turns *_Atomic taken_turns;

API status openhtp_run(struct bound *bound)
{
    struct turns *turns = atomic_load_explicit(&taken_turns, memory_order_relaxed);
    if (turns && atomic_load_explicit(&turns->claimed, memory_order_relaxed))
        atomic_store_explicit(&turns->claimed, 0, memory_order_relaxed);
    return CALL(RUN_WITH_BINDING, void *, const void *, void *)(bound->session, NULL, bound->binding);
}

/* How a row of sessions is computed, and where it ended. Times are of the monotonic clock, in ns. */
struct row {
    int64_t looked;   /* when the descriptor was last looked at */
    int64_t interval; /* how often it is looked at, at most */
    int64_t until;    /* no session begins after this */
    int64_t began, ended; /* of the last session that was computed */
    int32_t news;     /* a descriptor; no session begins after it has become readable */
    int32_t done;     /* how many were computed */
};

static int64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Computes sessions one after another, at least one unless that fails. */
API status openhtp_run_row(struct bound *const *bound, int count, struct row *row)
{
    struct pollfd news = {row->news, POLLIN, 0};
    row->done = 0;
    row->ended = monotonic_ns();
    while (row->done < count) {
        int64_t began = row->ended;
        status failed = openhtp_run(bound[row->done]);
        if (failed)
            return failed;
        row->done++;
        row->began = began;
        row->ended = monotonic_ns();
        if (row->ended >= row->until)
            break;
        if (row->ended - row->looked >= row->interval) {
            row->looked = row->ended;
            if (poll(&news, 1, 0))
                break;
        }
    }
    return NULL;
}

#include "frames.c"

/* How long a descriptor is looked at before its thread sleeps, and what became of it. Times are in ns. */
struct watch {
    int64_t patience;           /* how long it is looked at before; 0: not at all */
    int64_t taken;              /* two looks that lie so far apart: somebody else had the processor */
    int64_t courtesy;           /* how long to let callers finish, once there is news */
    struct turns *turns;        /* with callers of this process; may be NULL */
    int64_t waited;             /* until there was news, or it gave up */
    int32_t descriptor;
    int32_t was_taken;
};

static void relax(void)
{
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Waits until a descriptor is readable, for ``timeout`` ns at most (-1: for ever), or until a signal comes. */
API void openhtp_await_news(struct watch *watch, int64_t timeout)
{
    struct pollfd news = {watch->descriptor, POLLIN, 0};
    int64_t began = monotonic_ns(), looked = began, limit = watch->patience;
    int found = 0;
    struct turns *turns = watch->turns;
    watch->was_taken = 0;
    if (turns) {
        atomic_store_explicit(&turns->claimed, 0, memory_order_relaxed);
        atomic_store_explicit(&taken_turns, turns, memory_order_relaxed);
    }
    if (timeout >= 0 && timeout < limit)
        limit = timeout;
    while (looked - began < limit && !(found = poll(&news, 1, 0))) {
        int64_t now = monotonic_ns();
        if (now - looked > watch->taken) {
            watch->was_taken = 1;
            break;
        }
        looked = now;
        relax();
    }
    if (!found) {
        int64_t left = timeout < 0 ? -1 : timeout - (monotonic_ns() - began);
        struct timespec rest = {left / 1000000000, left % 1000000000};
        if (timeout < 0 || left > 0)
            found = ppoll(&news, 1, timeout < 0 ? NULL : &rest, NULL);
    }
    int64_t came = monotonic_ns();
    watch->waited = came - began;
    if (found > 0 && turns && watch->patience) {
        atomic_store(&turns->claimed, came);
        while (atomic_load(&turns->queueing) && monotonic_ns() - came < watch->courtesy)
            relax();
    }
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

/* Operators. Those of a session that needs none cost nothing: it is not told about them. */
enum { TYPE_FLOAT = 1, TYPE_U8 = 2, TYPE_S8 = 3, TYPE_U16 = 4, TYPE_S64 = 7 };
enum { MOST_SIDE = 1 << 24 };

/* What the runtime knows of an operator, in version 16 of its interface, the first in which computing can fail; and what
 * tells the operators here apart. */
enum { OPERATOR_VERSION = 16 };
struct operator_of {
    uint32_t version;
    void *(*create)(const struct operator_of *, const void *, const void *);
    const char *(*name)(const struct operator_of *);
    const char *(*provider)(const struct operator_of *);
    int (*input_type)(const struct operator_of *, size_t);
    size_t (*count_inputs)(const struct operator_of *);
    int (*output_type)(const struct operator_of *, size_t);
    size_t (*count_outputs)(const struct operator_of *);
    void (*compute_surely)(void *, void *);
    void (*destroy)(void *);
    int (*input_kind)(const struct operator_of *, size_t);
    int (*output_kind)(const struct operator_of *, size_t);
    int (*input_memory)(const struct operator_of *, size_t);
    int (*variadic[4])(const struct operator_of *);
    status (*create_or_fail)(const struct operator_of *, const void *, const void *, void **);
    status (*compute)(void *, void *);
    const char *own_name;
    int right, result;
};

#define OF(functions, place, ...) ((status(*)(__VA_ARGS__))(functions)[place])

static status failed_because(void *const *functions, const char *words)
{
    return OF(functions, CREATE_STATUS, int, const char *)(RUNTIME_FAILED, words);
}

/* For data that are not as large as the operator says: no model of ours has such, so nothing is read or written. */
static status unfit(void *const *functions)
{
    return failed_because(functions, "an input or output does not fit the operator");
}

/* Where an input's data lies, if it has that many numbers; `other` may be another count of them. */
static const void *data_of(void *const *functions, void *context, size_t place, size_t expected, size_t other,
                           size_t *count)
{
    const void *value = NULL;
    void *shape = NULL, *data = NULL;
    *count = 0;
    if (OF(functions, INPUT_OF, void *, size_t, const void **)(context, place, &value) ||
        OF(functions, TYPE_AND_SHAPE, const void *, void **)(value, &shape))
        return NULL;
    status failed = OF(functions, COUNT_ELEMENTS, const void *, size_t *)(shape, count);
    ((void (*)(void *))functions[RELEASE_TYPE_AND_SHAPE])(shape);
    if (failed || (*count != expected && *count != other) ||
        OF(functions, TENSOR_DATA, const void *, void **)(value, &data))
        return NULL;
    return data;
}

struct attribute {
    const char *name;
    int64_t *place, least, most;
};

/* Whether an operator has all these numbers, within their limits. */
static int read_attributes(void *const *functions, const void *info, const struct attribute *attributes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct attribute *one = &attributes[i];
        status failed = OF(functions, NUMBER_ATTRIBUTE, const void *, const char *, int64_t *)(info, one->name, one->place);
        if (failed)
            ((void (*)(void *))functions[RELEASE_STATUS])(failed);
        if (failed || *one->place < one->least || *one->place > one->most)
            return 0;
    }
    return 1;
}

static const char *name_of_operator(const struct operator_of *of)
{
    return of->own_name;
}

static const char *no_provider(const struct operator_of *of)
{
    (void)of;
    return NULL;
}

static int output_type(const struct operator_of *of, size_t place)
{
    (void)place;
    return of->result;
}

static size_t one_output(const struct operator_of *of)
{
    (void)of;
    return 1;
}

/* Where an input lies: in the processor's own memory. */
static int own_memory(const struct operator_of *of, size_t place)
{
    (void)of;
    (void)place;
    return DEFAULT_MEMORY;
}

static int required(const struct operator_of *of, size_t place)
{
    (void)of;
    (void)place;
    return 0;
}

#include "interpolation.c"

static int image_input(const struct operator_of *of, size_t place)
{
    (void)of;
    const int types[] = {TYPE_FLOAT, TYPE_S64, TYPE_FLOAT};
    return types[place];
}

static size_t three_inputs(const struct operator_of *of)
{
    (void)of;
    return 3;
}

static const struct operator_of interpolation = {.version = OPERATOR_VERSION,
                                                 .create = create_image,
                                                 .name = name_of_operator,
                                                 .provider = no_provider,
                                                 .input_type = image_input,
                                                 .count_inputs = three_inputs,
                                                 .output_type = output_type,
                                                 .count_outputs = one_output,
                                                 .destroy = free,
                                                 .input_kind = required,
                                                 .output_kind = required,
                                                 .input_memory = own_memory,
                                                 .compute = compute_image,
                                                 .own_name = "Interpolation",
                                                 .result = TYPE_FLOAT};

/* Products of one row. The row has 16-bit numbers, which are taken apart into bytes; sums of products with either byte are
 * exact, and put together as engine/wide.py has the runtime do it: in the same order, with the same bits. Where a
 * quantized result is asked for, it is rounded as the runtime's own operator rounds it. */
#if defined(__x86_64__)
#define WIDE __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))
enum { BLOCK = 64, GROUP = 4, ROWS_ON_STACK = 4096 };

struct product {
    int64_t zero, rows, columns, rank;
};

struct quantized {
    float scale;
    int32_t zero, most;
};

struct product_kernel {
    struct product product;
    int right, result;
    void *const *functions;
};

static int has_vector_products(void)
{
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE) || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return 0;
    const unsigned needed = bit_AVX512F | bit_AVX512BW | bit_AVX512VL;
    if ((b & needed) != needed || !(c & bit_AVX512VNNI))
        return 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & 0xe6) == 0xe6; /* the system saves the widest registers */
}

WIDE static void take_apart(const uint16_t *numbers, uint8_t *low, uint8_t *high, size_t count)
{
    size_t place = 0;
    for (; place + 32 <= count; place += 32) {
        __m512i both = _mm512_loadu_si512(numbers + place);
        _mm256_storeu_si256((void *)(low + place), _mm512_cvtepi16_epi8(both));
        _mm256_storeu_si256((void *)(high + place), _mm512_cvtepi16_epi8(_mm512_srli_epi16(both, 8)));
    }
    for (; place < count; place++) {
        low[place] = (uint8_t)numbers[place];
        high[place] = (uint8_t)(numbers[place] >> 8);
    }
}

struct sums {
    __m512i low[4], high[4], right[4];
};

WIDE static inline __attribute__((always_inline)) void add_group(struct sums *sums, const __m512i *row, uint32_t low,
                                                                 uint32_t high, int with_zero)
{
    __m512i a = _mm512_unpacklo_epi8(row[0], row[1]), b = _mm512_unpackhi_epi8(row[0], row[1]);
    __m512i c = _mm512_unpacklo_epi8(row[2], row[3]), d = _mm512_unpackhi_epi8(row[2], row[3]);
    __m512i column[4] = {_mm512_unpacklo_epi16(a, c), _mm512_unpackhi_epi16(a, c), _mm512_unpacklo_epi16(b, d),
                         _mm512_unpackhi_epi16(b, d)};
    __m512i lows = _mm512_set1_epi32((int)low), highs = _mm512_set1_epi32((int)high), ones = _mm512_set1_epi8(1);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        sums->low[i] = _mm512_dpbusd_epi32(sums->low[i], lows, column[i]);
        sums->high[i] = _mm512_dpbusd_epi32(sums->high[i], highs, column[i]);
        if (with_zero)
            sums->right[i] = _mm512_dpbusd_epi32(sums->right[i], ones, column[i]);
    }
}

/* Sums of one block of columns, in float: those of the high bytes 256 times, and those of the low ones. */
WIDE static inline __attribute__((always_inline)) void add_block(const struct product *product, const uint8_t *low,
                                                                 const uint8_t *high, const uint8_t *right, int flips,
                                                                 __mmask64 there, int with_zero, __m512 *made)
{
    struct sums sums;
    const __m512i sign = _mm512_set1_epi8(flips ? (char)0x80 : 0);
    size_t rows = (size_t)product->rows, columns = (size_t)product->columns, begin = 0;
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        sums.low[i] = sums.high[i] = sums.right[i] = _mm512_setzero_si512();
    for (; begin + GROUP <= rows; begin += GROUP) {
        __m512i row[GROUP];
        uint32_t lows, highs;
        memcpy(&lows, low + begin, sizeof lows);
        memcpy(&highs, high + begin, sizeof highs);
#pragma GCC unroll 4
        for (size_t i = 0; i < GROUP; i++)
            row[i] = _mm512_xor_si512(_mm512_maskz_loadu_epi8(there, right + (begin + i) * columns), sign);
        add_group(&sums, row, lows, highs, with_zero);
    }
    if (begin < rows) {
        __m512i row[GROUP];
        uint32_t lows = 0, highs = 0;
        memcpy(&lows, low + begin, rows - begin);
        memcpy(&highs, high + begin, rows - begin);
#pragma GCC unroll 4
        for (size_t i = 0; i < GROUP; i++)
            row[i] = begin + i < rows
                         ? _mm512_xor_si512(_mm512_maskz_loadu_epi8(there, right + (begin + i) * columns), sign)
                         : _mm512_setzero_si512();
        add_group(&sums, row, lows, highs, with_zero);
    }
    __m512i low_zero = _mm512_set1_epi32((int)(product->zero & 255)), high_zero = _mm512_set1_epi32((int)(product->zero >> 8));
    __m512 all[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        if (with_zero) {
            sums.low[i] = _mm512_sub_epi32(sums.low[i], _mm512_mullo_epi32(low_zero, sums.right[i]));
            sums.high[i] = _mm512_sub_epi32(sums.high[i], _mm512_mullo_epi32(high_zero, sums.right[i]));
        }
        /* A float times 256 is exact, so nothing depends on whether the two steps are made one. */
        all[i] = _mm512_add_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sums.high[i]), _mm512_set1_ps(256.0f)),
                               _mm512_cvtepi32_ps(sums.low[i]));
    }
    /* Interleaving left 4 columns of each 16 in every register: put them side by side again. */
    __m512 a = _mm512_shuffle_f32x4(all[0], all[1], 0x44), b = _mm512_shuffle_f32x4(all[2], all[3], 0x44);
    __m512 c = _mm512_shuffle_f32x4(all[0], all[1], 0xee), d = _mm512_shuffle_f32x4(all[2], all[3], 0xee);
    made[0] = _mm512_shuffle_f32x4(a, b, 0x88);
    made[1] = _mm512_shuffle_f32x4(a, b, 0xdd);
    made[2] = _mm512_shuffle_f32x4(c, d, 0x88);
    made[3] = _mm512_shuffle_f32x4(c, d, 0xdd);
}

WIDE static void store(__m512 value, void *result, size_t column, __mmask16 there, int type,
                       const struct quantized *quantized)
{
    if (type == TYPE_FLOAT) {
        _mm512_mask_storeu_ps((float *)result + column, there, value);
        return;
    }
    value = _mm512_div_ps(value, _mm512_set1_ps(quantized->scale));
    value = _mm512_max_ps(value, _mm512_set1_ps((float)-quantized->zero));
    value = _mm512_min_ps(value, _mm512_set1_ps((float)(quantized->most - quantized->zero)));
    __m512i steps = _mm512_add_epi32(_mm512_cvtps_epi32(value), _mm512_set1_epi32(quantized->zero));
    if (type == TYPE_U16)
        _mm512_mask_cvtepi32_storeu_epi16((uint16_t *)result + column, there, steps);
    else
        _mm512_mask_cvtepi32_storeu_epi8((uint8_t *)result + column, there, steps);
}

WIDE static void multiply_row(const struct product *product, const uint8_t *low, const uint8_t *high,
                              const uint8_t *right, int flips, const float *scales, int many_scales, void *result,
                              int type, const struct quantized *quantized)
{
    size_t columns = (size_t)product->columns;
    for (size_t begin = 0; begin < columns; begin += BLOCK) {
        size_t left = columns - begin;
        __mmask64 there = left >= BLOCK ? ~(__mmask64)0 : ((__mmask64)1 << left) - 1;
        __m512 made[4];
        if (product->zero)
            add_block(product, low, high, right + begin, flips, there, 1, made);
        else
            add_block(product, low, high, right + begin, flips, there, 0, made);
        for (size_t i = 0; i < 4; i++) {
            __mmask16 part = (__mmask16)(there >> (16 * i));
            if (!part)
                break;
            __m512 scale = many_scales ? _mm512_maskz_loadu_ps(part, scales + begin + 16 * i) : _mm512_set1_ps(*scales);
            store(_mm512_mul_ps(made[i], scale), result, begin + 16 * i, part, type, quantized);
        }
    }
}

static status compute_product(void *made, void *context)
{
    const struct product_kernel *kernel = made;
    const struct product *product = &kernel->product;
    void *const *functions = kernel->functions;
    size_t rows = (size_t)product->rows, columns = (size_t)product->columns, count, scale_count;
    const uint16_t *numbers = data_of(functions, context, 0, rows, rows, &count);
    const uint8_t *right = data_of(functions, context, 1, rows * columns, rows * columns, &count);
    const float *scales = data_of(functions, context, 2, columns, 1, &scale_count);
    struct quantized quantized = {.scale = 1.0f};
    int64_t sizes[MOST_SIZES];
    void *value = NULL, *result = NULL;
    for (int64_t i = 0; i < product->rank; i++)
        sizes[i] = i + 1 < product->rank ? 1 : product->columns;
    if (OF(functions, OUTPUT_OF, void *, size_t, const int64_t *, size_t, void **)(context, 0, sizes,
                                                                                (size_t)product->rank, &value) ||
        OF(functions, TENSOR_DATA, void *, void **)(value, &result) || !numbers || !right || !scales)
        return unfit(functions);
    if (kernel->result != TYPE_FLOAT) {
        const float *scale = data_of(functions, context, 3, 1, 1, &count);
        const void *zero = data_of(functions, context, 4, 1, 1, &count);
        if (!scale || !zero)
            return unfit(functions);
        quantized.scale = *scale;
        quantized.zero = kernel->result == TYPE_U16 ? *(const uint16_t *)zero : *(const uint8_t *)zero;
        quantized.most = kernel->result == TYPE_U16 ? 65535 : 255;
    }
    uint8_t here[2 * ROWS_ON_STACK], *bytes = rows <= ROWS_ON_STACK ? here : malloc(2 * rows);
    if (!bytes)
        return failed_because(functions, "no memory");
    take_apart(numbers, bytes, bytes + rows, rows);
    multiply_row(product, bytes, bytes + rows, right, kernel->right == TYPE_U8, scales, scale_count > 1, result,
                 kernel->result, &quantized);
    if (bytes != here)
        free(bytes);
    return NULL;
}

static void *create_product(const struct operator_of *of, const void *functions, const void *info)
{
    struct product_kernel *kernel = calloc(1, sizeof *kernel);
    if (!kernel)
        return NULL;
    kernel->functions = functions;
    kernel->right = of->right;
    kernel->result = of->result;
    struct product *product = &kernel->product;
    const struct attribute attributes[] = {{"zero", &product->zero, 0, 65535},
                                           {"rows", &product->rows, 1, 1 << 20},
                                           {"columns", &product->columns, 1, MOST_SIDE},
                                           {"rank", &product->rank, 1, MOST_SIZES}};
    if (!read_attributes(kernel->functions, info, attributes, sizeof attributes / sizeof *attributes))
        memset(product, 0, sizeof *product); /* fits no data */
    return kernel;
}

static int input_type(const struct operator_of *of, size_t place)
{
    const int types[] = {TYPE_U16, of->right, TYPE_FLOAT, TYPE_FLOAT, of->result};
    return types[place];
}

static size_t count_inputs(const struct operator_of *of)
{
    return of->result == TYPE_FLOAT ? 3 : 5;
}

#define PRODUCT(said, kind, made)                                                                                      \
    {.version = OPERATOR_VERSION,                                                                                      \
     .create = create_product,                                                                                         \
     .name = name_of_operator,                                                                                         \
     .provider = no_provider,                                                                                          \
     .input_type = input_type,                                                                                         \
     .count_inputs = count_inputs,                                                                                     \
     .output_type = output_type,                                                                                       \
     .count_outputs = one_output,                                                                                      \
     .destroy = free,                                                                                                  \
     .input_kind = required,                                                                                           \
     .output_kind = required,                                                                                          \
     .input_memory = own_memory,                                                                                       \
     .compute = compute_product,                                                                                       \
     .own_name = said,                                                                                                 \
     .right = kind,                                                                                                    \
     .result = made}
static const struct operator_of products[] = {
    PRODUCT("SignedProduct", TYPE_S8, TYPE_FLOAT),   PRODUCT("SignedProductU16", TYPE_S8, TYPE_U16),
    PRODUCT("SignedProductU8", TYPE_S8, TYPE_U8),    PRODUCT("UnsignedProduct", TYPE_U8, TYPE_FLOAT),
    PRODUCT("UnsignedProductU16", TYPE_U8, TYPE_U16), PRODUCT("UnsignedProductU8", TYPE_U8, TYPE_U8),
};

static status add_products(void *const *functions, void *domain)
{
    status failed = NULL;
    for (size_t i = 0; has_vector_products() && i < sizeof products / sizeof *products && !failed; i++)
        failed = OF(functions, ADD_TO_DOMAIN, void *, const void *)(domain, &products[i]);
    return failed;
}

API int openhtp_has_products(void)
{
    return has_vector_products();
}
#else
static status add_products(void *const *functions, void *domain)
{
    (void)functions;
    (void)domain;
    return NULL;
}

API int openhtp_has_products(void)
{
    return 0;
}
#endif

/* Lets a session have the operators that the processor can compute. */
static void offer_operators(void *filled_in, void *const *functions)
{
    static _Atomic(void *) domain;
    void *offered = atomic_load(&domain), *none = NULL;
    if (!functions)
        return;
    if (!offered) {
        if (OF(functions, CREATE_DOMAIN, const char *, void **)("openhtp", &offered) ||
            OF(functions, ADD_TO_DOMAIN, void *, const void *)(offered, &interpolation) || add_products(functions, offered))
            return;
        if (!atomic_compare_exchange_strong(&domain, &none, offered))
            offered = none; /* another thread was first; this one stays, empty of use */
    }
    OF(functions, ADD_DOMAIN, void *, void *)(filled_in, offered);
}
