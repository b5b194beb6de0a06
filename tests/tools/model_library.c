/* A model as a converter writes it: y = x + x, in the graph "double". LATER: entries of the interface past ours. */
#include <openhtp_qnn.h>
#include <stdbool.h>

typedef struct { qnn_functions early; void *later[LATER]; } interface;
typedef struct {
    qnn_handle graph;
    const char *name;
    qnn_tensor *inputs;
    uint32_t n_inputs;
    qnn_tensor *outputs;
    uint32_t n_outputs;
} graph_info;

static uint32_t dims[] = {1, 4};
static qnn_tensor x = {.version = 1, .name = "x", .kind = QNN_APP_WRITE, .type = QNN_FLOAT32, .rank = 2, .dims = dims};
static qnn_tensor y = {.version = 1, .name = "y", .kind = QNN_APP_READ, .type = QNN_FLOAT32, .rank = 2, .dims = dims};
static graph_info info = {.name = "double", .inputs = &x, .n_inputs = 1, .outputs = &y, .n_outputs = 1};
static graph_info *infos[] = {&info};

int QnnModel_composeGraphs(qnn_handle backend, interface qnn, qnn_handle context, const void **configs,
                           uint32_t n_configs, graph_info ***graphs, uint32_t *count, bool debug, void *log, int level)
{
    if (!backend || configs || n_configs || debug || log || level)
        return 7;
    if (qnn.early.graph_create(context, "double", NULL, &info.graph) || qnn.early.tensor_create(info.graph, &x) ||
        qnn.early.tensor_create(info.graph, &y))
        return 1;
    qnn_tensor inputs[] = {x, x};
    qnn_op add = {1, "add", "qti.aisw", OPERATION, 0, NULL, 2, inputs, 1, &y};
    if (qnn.early.graph_add_node(info.graph, add))
        return 2;
    *graphs = infos;
    *count = 1;
    return 0;
}
