/* Declarations of what a small QNN client needs, for those who have no SDK at hand. Written for OpenHTP from documented
   names and numbers; a program that is built with it also runs on the vendor's libQnnHtp.so. Link with -ldl. */
#ifndef OPENHTP_QNN_H
#define OPENHTP_QNN_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef uint64_t qnn_code; /* 0 is success */
typedef void *qnn_handle;

enum { QNN_APP_WRITE = 0, QNN_APP_READ = 1, QNN_NATIVE = 3, QNN_STATIC = 4 };
enum { QNN_FLOAT32 = 0x0232, QNN_UFIXED8 = 0x0408 };
enum { QNN_PRIORITY_LOW = 0, QNN_PRIORITY_NORMAL = 100, QNN_PRIORITY_HIGH = 200 };
/* Options of a context. */
enum {
    QNN_CONTEXT_PRIORITY = 1,
    QNN_CONTEXT_QUEUE_DEPTH = 4,
    QNN_CONTEXT_MEMORY_LIMIT_HINT = 6, /* megabytes, in "wide" */
    QNN_CONTEXT_PERSISTENT_BINARY = 7
};

typedef struct { float scale; int32_t offset; } qnn_scale_offset;
typedef struct {
    uint32_t defined, encoding;
    union {
        qnn_scale_offset plain;
        struct { int32_t axis; uint32_t count; qnn_scale_offset *each; } axis;
        uint64_t room[4];
    } of;
} qnn_quantization;
typedef struct {
    uint32_t version, pad, id;
    const char *name;
    uint32_t kind, format, type;
    qnn_quantization quant;
    uint32_t rank, *dims, mem_type;
    union { struct { void *data; uint32_t size; } raw; qnn_handle mem; };
    uint8_t *dynamic;
    uint32_t sparse[3];
    uint8_t produced;
} qnn_tensor;
typedef struct {
    uint32_t version;
    const char *name, *package, *type;
    uint32_t n_params;
    void *params;
    uint32_t n_inputs;
    qnn_tensor *inputs;
    uint32_t n_outputs;
    qnn_tensor *outputs;
} qnn_op;
/* A parameter of an operation: kind 0 is a scalar, kind 1 a static tensor that was created before. */
typedef struct {
    uint32_t kind;
    const char *name;
    union {
        struct { uint32_t type, pad; union { float f32; int32_t i32; uint32_t u32; uint8_t flag; uint64_t raw; }; } scalar;
        qnn_tensor tensor;
    };
} qnn_param;
typedef struct {
    uint32_t option;
    union { void *custom; uint32_t number; uint64_t wide; struct { uint32_t type, depth; } queue; } of;
} qnn_config;
typedef void (*qnn_notify)(void *param, qnn_code status);

_Static_assert(sizeof(qnn_tensor) == 144 && sizeof(qnn_op) == 80 && sizeof(qnn_config) == 16, "layouts");
_Static_assert(sizeof(qnn_param) == 160, "layouts");

/* The functions, by their places in the interface. */
typedef struct {
    qnn_code (*property)(uint32_t);
    qnn_code (*backend_create)(qnn_handle log, const qnn_config **, qnn_handle *);
    void *f2_to_4[3];
    qnn_code (*register_op_package)(qnn_handle backend, const char *path, const char *provider, const char *target);
    void *f6_to_7[2];
    qnn_code (*backend_free)(qnn_handle);
    qnn_code (*context_create)(qnn_handle backend, qnn_handle device, const qnn_config **, qnn_handle *);
    void *f10;
    qnn_code (*context_binary_size)(qnn_handle, uint64_t *);
    qnn_code (*context_binary)(qnn_handle, void *, uint64_t, uint64_t *written);
    qnn_code (*context_from_binary)(qnn_handle backend, qnn_handle device, const qnn_config **, const void *, uint64_t,
                                    qnn_handle *, qnn_handle profile);
    qnn_code (*context_free)(qnn_handle, qnn_handle profile);
    qnn_code (*graph_create)(qnn_handle context, const char *, const qnn_config **, qnn_handle *);
    void *f16_to_17[2];
    qnn_code (*graph_add_node)(qnn_handle, qnn_op);
    qnn_code (*graph_finalize)(qnn_handle, qnn_handle profile, qnn_handle signal);
    qnn_code (*graph_retrieve)(qnn_handle context, const char *, qnn_handle *);
    qnn_code (*graph_execute)(qnn_handle, const qnn_tensor *, uint32_t, qnn_tensor *, uint32_t, qnn_handle profile,
                              qnn_handle signal);
    qnn_code (*graph_execute_async)(qnn_handle, const qnn_tensor *, uint32_t, qnn_tensor *, uint32_t,
                                    qnn_handle profile, qnn_handle signal, qnn_notify, void *param);
    void *f23;
    qnn_code (*tensor_create)(qnn_handle graph, qnn_tensor *);
    void *f25_to_39[15];
    qnn_code (*device_create)(qnn_handle log, const qnn_config **, qnn_handle *);
    void *f41_to_42[2];
    qnn_code (*device_free)(qnn_handle);
    qnn_code (*signal_create)(qnn_handle backend, const qnn_config **, qnn_handle *); /* no list: to abort with */
    void *f45;
    qnn_code (*signal_trigger)(qnn_handle);
    qnn_code (*signal_free)(qnn_handle);
    void *f48_to_54[7];
    qnn_code (*context_from_binary_with_signal)(qnn_handle backend, qnn_handle device, const qnn_config **, const void *,
                                                uint64_t, qnn_handle *, qnn_handle profile, qnn_handle signal);
} qnn_functions;

/* The functions of a library; ends the program if it cannot be loaded. */
static inline const qnn_functions *qnn_load(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    qnn_code (*providers)(void ****, uint32_t *);
    *(void **)&providers = dlsym(library, "QnnInterface_getProviders");
    void ***list;
    uint32_t count;
    if (!providers || providers(&list, &count) || !count) {
        fprintf(stderr, "%s offers no interface\n", path);
        exit(1);
    }
    return (const qnn_functions *)((void **)list[0] + 5); /* behind its id, name and versions */
}

/* A tensor with its data at an address, for an execution. */
static inline qnn_tensor qnn_with(qnn_tensor tensor, void *data, uint32_t size)
{
    tensor.raw.data = data;
    tensor.raw.size = size;
    tensor.mem_type = 0;
    return tensor;
}

/* Ends the program unless a call succeeded. */
#define QNN_NEED(call) do { qnn_code code_ = (call); if (code_) { \
    fprintf(stderr, "%s: %s answered %lu\n", __FILE__, #call, (unsigned long)code_); exit(1); } } while (0)

#endif
