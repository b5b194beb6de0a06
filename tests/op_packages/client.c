/* A C client with an operator of its own: registers c_ops.c, runs it, saves the context and loads it again.
   usage: client LIBQNNHTP PACKAGE TARGET(- for none) */
#include <math.h>
#include <string.h>

#include "openhtp_qnn.h"

enum { N = 8 };

static qnn_tensor tensor(const char *name, uint32_t kind, uint32_t *dims)
{
    qnn_tensor made = {.version = 1, .name = name, .kind = kind, .type = QNN_FLOAT32, .rank = 2, .dims = dims};
    made.quant.defined = made.quant.encoding = 0x7fffffff;
    return made;
}

static double run(const qnn_functions *qnn, qnn_handle graph, qnn_tensor x, qnn_tensor y)
{
    float in[N], out[N];
    double worst = 0;
    for (int i = 0; i < N; i++)
        in[i] = i - 3.5f;
    x.raw.data = in, y.raw.data = out;
    x.raw.size = y.raw.size = sizeof in;
    QNN_NEED(qnn->graph_execute(graph, &x, 1, &y, 1, NULL, NULL));
    for (int i = 0; i < N; i++)
        worst = fmax(worst, fabs(out[i] - in[i] / (1 + exp(-2.0 * in[i]))));
    return worst;
}

int main(int argc, char **argv)
{
    const qnn_functions *qnn = qnn_load(argv[1]);
    const char *target = strcmp(argv[3], "-") ? argv[3] : NULL;
    qnn_handle backend, context, graph;
    QNN_NEED(qnn->backend_create(NULL, NULL, &backend));
    printf("capability %lu\n", (unsigned long)qnn->property(105));
    QNN_NEED(qnn->register_op_package(backend, argv[2], "c_ops_provider", target));
    printf("again %lu\n", (unsigned long)qnn->register_op_package(backend, argv[2], "c_ops_provider", target));
    printf("missing file %lu\n", (unsigned long)qnn->register_op_package(backend, "/no/such.so", "p", NULL));
    printf("missing provider %lu\n", (unsigned long)qnn->register_op_package(backend, argv[2], "nobody", NULL));
    printf("newer %lu\n", (unsigned long)qnn->register_op_package(backend, argv[2], "newer_provider", NULL));
    printf("failing %lu\n", (unsigned long)qnn->register_op_package(backend, argv[2], "failing_provider", NULL));
    printf("target %lu\n", (unsigned long)qnn->register_op_package(backend, argv[2], "c_ops_provider", "GPU"));
    QNN_NEED(qnn->context_create(backend, NULL, NULL, &context));
    QNN_NEED(qnn->graph_create(context, "g", NULL, &graph));
    uint32_t dims[] = {1, N};
    qnn_tensor x = tensor("x", QNN_APP_WRITE, dims), y = tensor("y", QNN_APP_READ, dims);
    QNN_NEED(qnn->tensor_create(graph, &x));
    QNN_NEED(qnn->tensor_create(graph, &y));
    struct { uint32_t kind; const char *name; uint32_t type, pad; union { float number; uint64_t room; }; char rest[128]; }
        beta = {0, "beta", QNN_FLOAT32, 0, {2.0f}};
    qnn_op node = {1, "swish", "c.ops", "Swish", 1, &beta, 1, &x, 1, &y};
    qnn_op unknown = node;
    unknown.package = "no.such";
    printf("unknown package %lu\n", (unsigned long)qnn->graph_add_node(graph, unknown));
    QNN_NEED(qnn->graph_add_node(graph, node));
    QNN_NEED(qnn->graph_finalize(graph, NULL, NULL));
    printf("worst %.6f\n", run(qnn, graph, x, y));
    uint64_t size, written;
    QNN_NEED(qnn->context_binary_size(context, &size));
    void *binary = malloc(size);
    QNN_NEED(qnn->context_binary(context, binary, size, &written));
    QNN_NEED(qnn->context_free(context, NULL));
    QNN_NEED(qnn->context_from_binary(backend, NULL, NULL, binary, written, &context, NULL));
    QNN_NEED(qnn->graph_retrieve(context, "g", &graph));
    printf("restored %.6f\n", run(qnn, graph, x, y));
    QNN_NEED(qnn->context_free(context, NULL));
    QNN_NEED(qnn->backend_free(backend));
    QNN_NEED(qnn->backend_create(NULL, NULL, &backend));
    printf("absent %lu\n", (unsigned long)qnn->context_from_binary(backend, NULL, NULL, binary, written, &context, NULL));
    QNN_NEED(qnn->backend_free(backend));
    return 0;
}
