/* Declarations for op packages of the CPU kind, for those who have no SDK at hand. Written for OpenHTP from documented
   names and numbers. A package is a shared library with a provider: a function that fills in the table of the others.
   Register it with backendRegisterOpPackage, Backend.register_op_package("library.so:provider") or --op-package. */
#ifndef OPENHTP_OP_PACKAGE_H
#define OPENHTP_OP_PACKAGE_H

#include "openhtp_qnn.h"

enum { QNN_CPU_BOOL8 = 0x0508, QNN_CPU_INT8 = 0x0008, QNN_CPU_INT32 = 0x0032 };
enum { QNN_CPU_UINT8 = 0x0108, QNN_CPU_UINT32 = 0x0132, QNN_CPU_FLOAT32 = 0x0232 };
enum { QNN_CPU_SCALAR = 0, QNN_CPU_TENSOR = 1, QNN_CPU_STRING = 2 };
enum { QNN_PACKAGE_BAD_NODE = 3110, QNN_PACKAGE_BAD_ARGUMENT = 3200, QNN_PACKAGE_FAILED = 1100 };

/* A tensor of a node. Its data is where ``data`` says when the operator's function is called, and not before. */
typedef struct {
    uint32_t format, type, rank;
    uint32_t *max_dims, *dims;
    void *data;
    qnn_quantization quant;
} qnn_cpu_tensor;

typedef struct {
    uint32_t kind;
    const char *name;
    union { double number; const char *text; qnn_cpu_tensor *tensor; };
} qnn_cpu_param;

typedef struct {
    const char *name, *package, *type;
    uint32_t n_params;
    qnn_cpu_param **params;
    uint32_t n_inputs;
    qnn_cpu_tensor **inputs;
    uint32_t n_outputs;
    qnn_cpu_tensor **outputs;
} qnn_cpu_node;

/* What a package makes of a node: a function, and what the function is called with. */
typedef struct {
    qnn_code (*run)(void *data);
    void *data;
} qnn_cpu_operation;

typedef struct { uint32_t major, minor, patch; } qnn_version;

typedef struct {
    const char *name;
    const char **operations;
    const void *operation_info;
    uint32_t n_operations;
    const void *optimizations;
    uint32_t n_optimizations;
    const char *build_id;
    const void *api;
    const void *package_info;
    const qnn_version *opset; /* the package's version: a context binary is only loaded with the same one */
    size_t reserved[12];
} qnn_package_info;

/* The table of version 1.4. ``node`` of create is a qnn_cpu_node, and stays until free is called. */
typedef struct {
    qnn_version version;
    qnn_code (*init)(void *infrastructure);
    qnn_code (*terminate)(void);
    qnn_code (*get_info)(const qnn_package_info **);
    qnn_code (*validate)(qnn_op);
    qnn_code (*create)(void *infrastructure, qnn_cpu_node *node, qnn_cpu_operation **);
    qnn_code (*free)(qnn_cpu_operation *);
    void *log_initialize, *log_set_level, *log_terminate;
} qnn_package;

_Static_assert(sizeof(qnn_cpu_tensor) == 80 && sizeof(qnn_cpu_param) == 24 && sizeof(qnn_cpu_node) == 72, "layouts");
_Static_assert(sizeof(qnn_package_info) == 176 && sizeof(qnn_package) == 88, "layouts");

#endif
