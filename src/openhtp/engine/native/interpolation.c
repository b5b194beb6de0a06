/* Images in another size, for sessions.c: each output is a weighted sum of the inputs around it. The runtime has an operator
 * for that, whose results depend on the processor and on the order of the axes; the results of this one do not. Python
 * (ops/resize.py) says which inputs each output is made of, and what they count. No product may be rounded together
 * with a sum here, so this is compiled without contraction.
 *
 * Along each of three axes an output is made of one input, which is its own, or of several ("taps"). There are two rules:
 * a sum over all corners, each weighted by the product of its weights, last axis first; and one axis after the other. */

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("O3") /* with vectors, as Clang makes them without being asked */
#endif

enum { IMAGE_AXES = 3, MOST_TAPS = 4 };

struct image {
    int64_t by_axis, rank, batch, channels;
    int64_t from[IMAGE_AXES], to[IMAGE_AXES], taps[IMAGE_AXES];
};

struct image_kernel {
    struct image image;
    void *const *functions;
};

/* What the outputs along an axis are made of: `index[tap * size + output]`, and their weights. */
struct taps {
    size_t count, from, to;
    const int64_t *index;
    const float *weight;
};

static size_t source(const struct taps *taps, size_t tap, size_t output)
{
    return taps->count > 1 ? (size_t)taps->index[tap * taps->to + output] : output;
}

static float weight_of(const struct taps *taps, size_t tap, size_t output)
{
    return taps->count > 1 ? taps->weight[tap * taps->to + output] : 1.0f;
}

/* Adds a row of inputs to a row of outputs, or begins it. `weights` has a row of weights for each tap. */
static void add_row(const struct taps *across, const float *weights, const float *restrict row, float *restrict sum,
                    int begins)
{
    size_t count = across->to;
    if (across->count == 1) {
        if (begins)
            for (size_t x = 0; x < count; x++)
                sum[x] = weights[x] * row[x];
        else
            for (size_t x = 0; x < count; x++)
                sum[x] = sum[x] + weights[x] * row[x];
        return;
    }
    const int64_t *left = across->index, *right = left + count;
    const float *more = weights + count;
    if (begins)
        for (size_t x = 0; x < count; x++)
            sum[x] = weights[x] * row[left[x]] + more[x] * row[right[x]];
    else
        for (size_t x = 0; x < count; x++)
            sum[x] = (sum[x] + weights[x] * row[left[x]]) + more[x] * row[right[x]];
}

/* A sum over all corners. `weights` has room for a row of each corner. */
static void sum_corners(const struct taps *axes, size_t images, const float *from, float *to, float *weights)
{
    const struct taps *deep = &axes[0], *down = &axes[1], *across = &axes[2];
    size_t plane = deep->from * down->from * across->from, result = deep->to * down->to * across->to;
    size_t row_weights = across->count * across->to;
    for (size_t z = 0; z < deep->to; z++)
        for (size_t y = 0; y < down->to; y++) {
            for (size_t k = 0; k < deep->count; k++)
                for (size_t j = 0; j < down->count; j++)
                    for (size_t i = 0; i < row_weights; i++)
                        weights[(k * down->count + j) * row_weights + i] =
                            (weight_of(across, i / across->to, i % across->to) * weight_of(down, j, y)) *
                            weight_of(deep, k, z);
            for (size_t n = 0; n < images; n++)
                for (size_t corner = 0; corner < deep->count * down->count; corner++) {
                    size_t k = corner / down->count, j = corner % down->count;
                    const float *row =
                        from + n * plane + (source(deep, k, z) * down->from + source(down, j, y)) * across->from;
                    add_row(across, weights + corner * row_weights, row, to + n * result + (z * down->to + y) * across->to,
                            corner == 0);
                }
        }
}

/* First across, then down. `rows` has room for the rows of one image. */
static void sum_by_axis(const struct taps *axes, size_t images, const float *from, float *to, float *rows)
{
    const struct taps *down = &axes[1], *across = &axes[2];
    size_t width = across->to;
    for (size_t n = 0; n < images; n++, from += down->from * across->from, to += down->to * width) {
        for (size_t y = 0; y < down->from; y++) {
            const float *row = from + y * across->from;
            float *restrict made = rows + y * width;
            if (across->count == 1) {
                memcpy(made, row, width * sizeof *row);
                continue;
            }
            const int64_t *at = across->index;
            const float *weight = across->weight;
            for (size_t x = 0; x < width; x++)
                made[x] = ((weight[x] * row[at[x]] + weight[width + x] * row[at[width + x]]) +
                           weight[2 * width + x] * row[at[2 * width + x]]) +
                          weight[3 * width + x] * row[at[3 * width + x]];
        }
        for (size_t y = 0; y < down->to; y++) {
            float *restrict made = to + y * width;
            const float *row[MOST_TAPS] = {0};
            float weight[MOST_TAPS] = {0};
            for (size_t tap = 0; tap < down->count; tap++) {
                row[tap] = rows + source(down, tap, y) * width;
                weight[tap] = weight_of(down, tap, y);
            }
            if (down->count == 1)
                memcpy(made, row[0], width * sizeof *made);
            else
                for (size_t x = 0; x < width; x++)
                    made[x] = ((weight[0] * row[0][x] + weight[1] * row[1][x]) + weight[2] * row[2][x]) +
                              weight[3] * row[3][x];
        }
    }
}

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif

/* The taps of all axes; 0 if they point out of an axis. */
static int find_taps(const struct image *image, const int64_t *index, const float *weight, struct taps *axes)
{
    for (size_t axis = 0; axis < IMAGE_AXES; axis++) {
        struct taps *taps = &axes[axis];
        *taps = (struct taps){(size_t)image->taps[axis], (size_t)image->from[axis], (size_t)image->to[axis], index, weight};
        if (taps->count == 1) {
            if (taps->from != taps->to)
                return 0;
            continue;
        }
        for (size_t i = 0; i < taps->count * taps->to; i++)
            if (index[i] < 0 || index[i] >= image->from[axis])
                return 0;
        index += taps->count * taps->to;
        weight += taps->count * taps->to;
    }
    return 1;
}

static status compute_image(void *made, void *context)
{
    const struct image_kernel *kernel = made;
    const struct image *image = &kernel->image;
    void *const *functions = kernel->functions;
    size_t images = (size_t)(image->batch * image->channels), taps = 0, count;
    size_t plane = images, corners = 1;
    for (size_t axis = 0; axis < IMAGE_AXES; axis++) {
        plane *= (size_t)image->from[axis];
        corners *= (size_t)image->taps[axis];
        if (image->taps[axis] > 1)
            taps += (size_t)(image->taps[axis] * image->to[axis]);
    }
    const float *from = data_of(functions, context, 0, plane, plane, &count);
    const int64_t *index = data_of(functions, context, 1, taps, taps, &count);
    const float *weight = data_of(functions, context, 2, taps, taps, &count);
    int64_t sizes[2 + IMAGE_AXES] = {image->batch, image->channels};
    size_t own = (size_t)image->rank - 2;
    void *value = NULL, *to = NULL;
    for (size_t i = 0; i < own; i++)
        sizes[2 + i] = image->to[IMAGE_AXES - own + i];
    struct taps axes[IMAGE_AXES];
    if (OF(functions, OUTPUT_OF, void *, size_t, const int64_t *, size_t, void **)(context, 0, sizes,
                                                                                (size_t)image->rank, &value) ||
        OF(functions, TENSOR_DATA, void *, void **)(value, &to) || !from || !index || !weight ||
        !find_taps(image, index, weight, axes))
        return unfit(functions);
    float *room = malloc(sizeof *room * axes[2].to * (image->by_axis ? axes[1].from : corners));
    if (!room)
        return failed_because(functions, "no memory");
    if (image->by_axis)
        sum_by_axis(axes, images, from, to, room);
    else
        sum_corners(axes, images, from, to, room);
    free(room);
    return NULL;
}

static void *create_image(const struct operator_of *of, const void *functions, const void *info)
{
    (void)of;
    struct image_kernel *kernel = calloc(1, sizeof *kernel);
    if (!kernel)
        return NULL;
    kernel->functions = functions;
    struct image *image = &kernel->image;
    const struct attribute attributes[] = {{"by_axis", &image->by_axis, 0, 1},
                                           {"rank", &image->rank, 3, 2 + IMAGE_AXES},
                                           {"batch", &image->batch, 1, MOST_SIDE},
                                           {"channels", &image->channels, 1, MOST_SIDE},
                                           {"depth", &image->from[0], 1, MOST_SIDE},
                                           {"height", &image->from[1], 1, MOST_SIDE},
                                           {"width", &image->from[2], 1, MOST_SIDE},
                                           {"new_depth", &image->to[0], 1, MOST_SIDE},
                                           {"new_height", &image->to[1], 1, MOST_SIDE},
                                           {"new_width", &image->to[2], 1, MOST_SIDE},
                                           {"taps_deep", &image->taps[0], 1, MOST_TAPS},
                                           {"taps_down", &image->taps[1], 1, MOST_TAPS},
                                           {"taps_across", &image->taps[2], 1, MOST_TAPS}};
    if (!read_attributes(kernel->functions, info, attributes, sizeof attributes / sizeof *attributes))
        memset(image, 0, sizeof *image); /* fits no data */
    for (size_t axis = 0; axis < IMAGE_AXES; axis++)
        if (image->taps[axis] > 1 && image->taps[axis] != (image->by_axis && axis ? MOST_TAPS : 2))
            memset(image, 0, sizeof *image);
    return kernel;
}
