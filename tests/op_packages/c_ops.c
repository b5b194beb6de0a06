/* An op package of the CPU kind: x * sigmoid(beta * x) on floats and 8-bit numbers, and an operator that fails. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "openhtp_op_package.h"

static const char *OPERATIONS[] = {"Swish", "Fails", "Sleeps", "Counts"};
static const qnn_version VERSION = {2, 1, 0};
static const qnn_package_info INFO = {.name = "c.ops", .operations = OPERATIONS, .n_operations = 4, .opset = &VERSION};
static int ready;

typedef struct {
    qnn_cpu_operation head;
    qnn_cpu_node *node;
    double beta;
    int calls;
} operation;

static size_t count(const qnn_cpu_tensor *tensor)
{
    size_t elements = 1;
    for (uint32_t axis = 0; axis < tensor->rank; axis++)
        elements *= tensor->dims[axis];
    return elements;
}

static double swish(double x, double beta) { return x / (1 + exp(-beta * x)); }

static qnn_code run_swish(void *data)
{
    operation *this = data;
    qnn_cpu_tensor *from = this->node->inputs[0], *to = this->node->outputs[0];
    for (size_t i = 0; i < count(from); i++) {
        if (from->type == QNN_CPU_FLOAT32) {
            ((float *)to->data)[i] = (float)swish(((float *)from->data)[i], this->beta);
        } else {
            qnn_scale_offset in = from->quant.of.plain, out = to->quant.of.plain;
            double result = swish(in.scale * (((uint8_t *)from->data)[i] + in.offset), this->beta);
            double stored = rint(result / out.scale) - out.offset;
            ((uint8_t *)to->data)[i] = (uint8_t)(stored < 0 ? 0 : stored > 255 ? 255 : stored);
        }
    }
    return 0;
}

static qnn_code run_fails(void *data) { return QNN_PACKAGE_FAILED; }

static qnn_code run_sleeps(void *data)
{
    for (;;)
        sleep(1);
    return 0;
}

/* How often the operator of this node was called: it is made once, and kept. */
static qnn_code run_counts(void *data)
{
    operation *this = data;
    this->calls++;
    for (size_t i = 0; i < count(this->node->outputs[0]); i++)
        ((float *)this->node->outputs[0]->data)[i] = (float)this->calls;
    return 0;
}

static qnn_code init(void *infrastructure)
{
    if (ready)
        return 3000;
    ready = infrastructure != NULL;
    return ready ? 0 : 3100;
}

static qnn_code get_info(const qnn_package_info **out)
{
    *out = &INFO;
    return 0;
}

static qnn_code validate(qnn_op node)
{
    int swish = !strcmp(node.type, "Swish");
    return swish && (node.n_inputs != 1 || node.n_outputs != 1 || node.n_params > 1) ? QNN_PACKAGE_BAD_NODE : 0;
}

static qnn_code create(void *infrastructure, qnn_cpu_node *node, qnn_cpu_operation **out)
{
    operation *this = calloc(1, sizeof *this);
    this->node = node;
    this->beta = 1;
    for (uint32_t i = 0; i < node->n_params; i++)
        if (!strcmp(node->params[i]->name, "beta") && node->params[i]->kind == QNN_CPU_SCALAR)
            this->beta = node->params[i]->number;
    qnn_code (*runs[])(void *) = {run_swish, run_fails, run_sleeps, run_counts};
    for (int i = 0; i < 4; i++)
        if (!strcmp(node->type, OPERATIONS[i]))
            this->head.run = runs[i];
    this->head.data = this;
    *out = &this->head;
    return this->head.run ? 0 : QNN_PACKAGE_BAD_ARGUMENT;
}

static qnn_code destroy(qnn_cpu_operation *head)
{
    free(head);
    return 0;
}

qnn_code c_ops_provider(qnn_package *table)
{
    *table = (qnn_package){{1, 4, 0}, init, NULL, get_info, validate, create, destroy};
    return 0;
}

qnn_code newer_provider(qnn_package *table)
{
    *table = (qnn_package){.version = {9, 0, 0}};
    return 0;
}

qnn_code failing_provider(qnn_package *table) { return 7; }
