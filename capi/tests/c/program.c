/* Calls every function of the interface on the CPU, C11 and C++17 alike. Prints the bits of
 * outputs, which the test beside it compares with the golden implementation's; what is refused is
 * judged here. Exits with 0 when nothing was wrong. */

#include "cake_rmsnorm.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the gated form asks of addresses. */
#define ALIGNED __attribute__((aligned(16)))

enum { ROWS = 12, HIDDEN = 40, GAP = 3, HEADS = 4, THREADS = 4 };

static int failures = 0;

static void expect(int condition, const char *what) {
    if (!condition) {
        printf("FAILED: %s: %s\n", what, cake_rmsnorm_last_error());
        failures++;
    }
}

static void succeeds(int32_t status, const char *what) {
    expect(status == CAKE_RMSNORM_STATUS_OK, what);
}

static void is_refused(int32_t status, const char *words) {
    if (status != CAKE_RMSNORM_STATUS_INVALID_ARGUMENT
        || strstr(cake_rmsnorm_last_error(), words) == NULL) {
        printf("FAILED: wanted \"%s\", got %d (%s): %s\n", words, (int)status,
               cake_rmsnorm_status_name(status), cake_rmsnorm_last_error());
        failures++;
    }
}

/* What the test beside this program computes too. */
static float value(unsigned seed, unsigned i) {
    return (float)(int)((i * 37u + seed * 61u) % 101u) / 16.0f - 3.0f;
}

static void fill(float *to, unsigned seed, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        to[i] = value(seed, i);
    }
}

/* Rows of HIDDEN elements, GAP elements apart; the gaps are NaN. */
static void fill_rows(float *to, unsigned seed) {
    memset(to, 0xff, sizeof(float) * ROWS * (HIDDEN + GAP));
    for (unsigned row = 0; row < ROWS; row++) {
        for (unsigned i = 0; i < HIDDEN; i++) {
            to[row * (HIDDEN + GAP) + i] = value(seed, row * HIDDEN + i);
        }
    }
}

static void print(const char *name, const float *values, unsigned rows, unsigned width,
                  unsigned stride) {
    printf("%s", name);
    for (unsigned row = 0; row < rows; row++) {
        for (unsigned i = 0; i < width; i++) {
            uint32_t bits;
            memcpy(&bits, &values[row * stride + i], sizeof bits);
            printf(" %08x", (unsigned)bits);
        }
    }
    printf("\n");
}

static CakeRmsnormMatrix packed(void *data) {
    CakeRmsnormMatrix matrix;
    memset(&matrix, 0, sizeof matrix);
    matrix.data = data;
    matrix.row_stride = HIDDEN;
    return matrix;
}

static CakeRmsnormConfig config(void) {
    CakeRmsnormConfig config;
    memset(&config, 0, sizeof config);
    config.struct_size = sizeof config;
    config.hidden = HIDDEN;
    config.input = CAKE_RMSNORM_DTYPE_F32;
    config.weight = CAKE_RMSNORM_DTYPE_F32;
    config.eps = 1e-5f;
    config.weight_offset = 1.0f;
    return config;
}

static ALIGNED float x[ROWS * (HIDDEN + GAP)], residual[ROWS * HIDDEN], w[HIDDEN];
static ALIGNED float dy[ROWS * HIDDEN], dh[ROWS * HIDDEN];

static CakeRmsnormForward forward_args(float *y, float *h, float *rstd) {
    CakeRmsnormForward args;
    memset(&args, 0, sizeof args);
    args.struct_size = sizeof args;
    args.rows = ROWS;
    args.x = packed(x);
    args.x.row_stride = HIDDEN + GAP;
    args.residual = packed(residual);
    args.h = packed(h);
    args.y = packed(y);
    args.w = w;
    args.rstd = rstd;
    return args;
}

static CakeRmsnormBackward backward_args(float *h, float *dx, float *dw) {
    CakeRmsnormBackward args;
    memset(&args, 0, sizeof args);
    args.struct_size = sizeof args;
    args.rows = ROWS;
    args.dy = packed(dy);
    args.x = packed(h);
    args.dh = packed(dh);
    args.dx = packed(dx);
    args.w = w;
    args.dw = dw;
    return args;
}

static void the_residual_form(const CakeRmsnormOperator *op) {
    static ALIGNED float y[ROWS * HIDDEN], h[ROWS * HIDDEN], rstd[ROWS];
    static ALIGNED float dx[ROWS * HIDDEN], dw[HIDDEN];
    static ALIGNED uint16_t dw_bf16[HIDDEN];
    CakeRmsnormForward forward = forward_args(y, h, rstd);
    CakeRmsnormBackward backward = backward_args(h, dx, dw);

    succeeds(cake_rmsnorm_prepare(op, CAKE_RMSNORM_CPU, 1, CAKE_RMSNORM_VIEWS_ANY), "prepare");
    succeeds(cake_rmsnorm_forward(op, CAKE_RMSNORM_CPU, NULL, &forward), "forward");
    print("h", h, ROWS, HIDDEN, HIDDEN);
    print("y", y, ROWS, HIDDEN, HIDDEN);
    print("rstd", rstd, 1, ROWS, 0);

    /* rstd is worked out again, and with it. */
    succeeds(cake_rmsnorm_backward(op, CAKE_RMSNORM_CPU, NULL, &backward), "backward");
    print("dx", dx, ROWS, HIDDEN, HIDDEN);
    print("dw", dw, 1, HIDDEN, 0);
    memset(dx, 0xff, sizeof dx);
    memset(dw, 0xff, sizeof dw);
    backward.rstd = rstd;
    backward.dw_bf16 = dw_bf16;
    succeeds(cake_rmsnorm_backward(op, CAKE_RMSNORM_CPU, NULL, &backward), "with rstd");
    print("dx", dx, ROWS, HIDDEN, HIDDEN);
    print("dw", dw, 1, HIDDEN, 0);
    printf("dw_bf16");
    for (unsigned i = 0; i < HIDDEN; i++) {
        printf(" %04x", (unsigned)dw_bf16[i]);
    }
    printf("\n");

    /* dw alone, added to what it holds. */
    memset(&backward.dx, 0, sizeof backward.dx);
    backward.dw_bf16 = NULL;
    backward.dw_update = CAKE_RMSNORM_UPDATE_ACCUMULATE;
    succeeds(cake_rmsnorm_backward(op, CAKE_RMSNORM_CPU, NULL, &backward), "dw added to");
    print("dw2", dw, 1, HIDDEN, 0);

    /* dx alone, in the place of dy, whose values come last. */
    backward.dw = NULL;
    backward.dw_update = CAKE_RMSNORM_UPDATE_OVERWRITE;
    backward.dx = backward.dy;
    succeeds(cake_rmsnorm_backward(op, CAKE_RMSNORM_CPU, NULL, &backward), "dx in place");
    print("dx", dy, ROWS, HIDDEN, HIDDEN);
    fill(dy, 3, ROWS * HIDDEN);

    /* No rows. */
    memset(dw, 0xff, sizeof dw);
    backward = backward_args(NULL, NULL, dw);
    backward.rows = 0;
    succeeds(cake_rmsnorm_backward(op, CAKE_RMSNORM_CPU, NULL, &backward), "no rows");
    for (unsigned i = 0; i < HIDDEN; i++) {
        expect(dw[i] == 0.0f, "dw of no rows");
    }
    backward.dw = NULL;
    succeeds(cake_rmsnorm_backward(op, CAKE_RMSNORM_CPU, NULL, &backward), "nothing at all");
}

/* Heads of tokens of a wider buffer, told by shape. */
static void groups_of_rows(const CakeRmsnormOperator *op) {
    enum { TOKENS = ROWS / HEADS, WIDTH = 6 * HIDDEN };
    static ALIGNED float buffer[TOKENS * WIDTH], y[ROWS * HIDDEN];
    const uint64_t shape[3] = {TOKENS, HEADS, HIDDEN};
    const int64_t strides[3] = {WIDTH, HIDDEN, 1};
    uint64_t rows = 0;
    CakeRmsnormForward args = forward_args(y, NULL, NULL);

    memset(buffer, 0xff, sizeof buffer);
    for (unsigned row = 0; row < ROWS; row++) {
        float *to = &buffer[row / HEADS * WIDTH + row % HEADS * HIDDEN];
        for (unsigned i = 0; i < HIDDEN; i++) {
            to[i] = value(1, row * HIDDEN + i);
        }
    }
    memset(&args.residual, 0, sizeof args.residual);
    memset(&args.h, 0, sizeof args.h);
    succeeds(cake_rmsnorm_matrix_from_shape(buffer, 3, shape, strides, &args.x, &rows), "shape");
    expect(rows == ROWS && args.x.group_rows == HEADS && args.x.group_stride == WIDTH,
           "rows of a shape");
    succeeds(cake_rmsnorm_forward(op, CAKE_RMSNORM_CPU, NULL, &args), "groups");
    print("plain y", y, ROWS, HIDDEN, HIDDEN);
}

struct thread {
    const CakeRmsnormOperator *op;
    float y[ROWS * HIDDEN], h[ROWS * HIDDEN];
    int32_t status;
};

static void *one_thread(void *pointer) {
    struct thread *thread = (struct thread *)pointer;
    CakeRmsnormForward args = forward_args(thread->y, thread->h, NULL);
    thread->status = CAKE_RMSNORM_STATUS_OK;
    for (int i = 0; i < 20 && thread->status == CAKE_RMSNORM_STATUS_OK; i++) {
        thread->status = cake_rmsnorm_forward(thread->op, CAKE_RMSNORM_CPU, NULL, &args);
    }
    return NULL;
}

static void several_threads(const CakeRmsnormOperator *op) {
    static struct thread threads[THREADS];
    pthread_t ids[THREADS];
    for (int i = 0; i < THREADS; i++) {
        threads[i].op = op;
        expect(pthread_create(&ids[i], NULL, one_thread, &threads[i]) == 0, "a thread");
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(ids[i], NULL);
        succeeds(threads[i].status, "a call of a thread");
        print("y", threads[i].y, ROWS, HIDDEN, HIDDEN);
    }
}

static void plans(const CakeRmsnormOperator *op) {
    static ALIGNED float y[ROWS * HIDDEN], h[ROWS * HIDDEN], dw[HIDDEN], dx[ROWS * HIDDEN];
    CakeRmsnormForward forward = forward_args(y, h, NULL);
    CakeRmsnormBackward backward = backward_args(h, dx, dw);
    CakeRmsnormDeviceProperties h200;
    CakeRmsnormPlan plan;
    uint64_t bytes = 1;
    memset(&plan, 0xff, sizeof plan);
    plan.struct_size = sizeof plan;
    memset(&h200, 0, sizeof h200);
    h200.struct_size = sizeof h200;
    h200.sm_count = 132;
    h200.compute_capability_major = 9;
    h200.shared_bytes_per_block = 232448;

    succeeds(cake_rmsnorm_forward_plan(op, &h200, &forward, &plan), "forward plan");
    printf("forward: %u %s workspace %u\n", plan.launch_count, plan.launches[0].kernel,
           (unsigned)plan.workspace_bytes);
    succeeds(cake_rmsnorm_backward_plan(op, &h200, &backward, &plan), "backward plan");
    printf("backward: %u", plan.launch_count);
    for (unsigned i = 0; i < plan.launch_count; i++) {
        printf(" %s", plan.launches[i].kernel);
    }
    printf(" workspace %u\n", (unsigned)plan.workspace_bytes);
    succeeds(cake_rmsnorm_workspace_bytes(op, CAKE_RMSNORM_CPU, ROWS, 1, &bytes), "workspace");
    expect(bytes == 0, "the CPU needs no workspace");
}

static void the_gated_form(void) {
    enum { WIDTH = 64, GATED_ROWS = 6 };
    static ALIGNED uint16_t gx[GATED_ROWS * WIDTH], gz[GATED_ROWS * WIDTH], gdy[GATED_ROWS * WIDTH];
    static ALIGNED uint16_t gy[GATED_ROWS * WIDTH], gdx[GATED_ROWS * WIDTH], gdz[GATED_ROWS * WIDTH];
    static ALIGNED float gw[WIDTH], gdw[WIDTH];
    uint16_t *const inputs[3] = {gx, gz, gdy};
    uint64_t bytes = 1;
    CakeRmsnormGatedOperator *op = NULL;
    CakeRmsnormGatedConfig config;
    CakeRmsnormGatedForward forward;
    CakeRmsnormGatedBackward backward;

    for (unsigned seed = 0; seed < 3; seed++) {
        for (unsigned i = 0; i < GATED_ROWS * WIDTH; i++) {
            float exact = value(seed, i);
            uint32_t bits;
            memcpy(&bits, &exact, sizeof bits);
            inputs[seed][i] = (uint16_t)(bits >> 16);
        }
    }
    fill(gw, 3, WIDTH);
    memset(&config, 0, sizeof config);
    config.struct_size = sizeof config;
    config.hidden = WIDTH;
    config.groups = 2;
    config.weight = CAKE_RMSNORM_DTYPE_F32;
    config.order = CAKE_RMSNORM_GATE_ORDER_GATE_FIRST;
    config.eps = 1e-5f;
    succeeds(cake_rmsnorm_gated_create(&config, &op), "a gated operator");
    succeeds(cake_rmsnorm_gated_prepare(op, CAKE_RMSNORM_CPU), "gated prepare");
    succeeds(cake_rmsnorm_gated_workspace_bytes(op, CAKE_RMSNORM_CPU, 6, &bytes), "workspace");
    expect(bytes == 0, "the CPU needs no workspace");

    memset(&forward, 0, sizeof forward);
    forward.struct_size = sizeof forward;
    forward.rows = GATED_ROWS;
    forward.x = forward.z = forward.y = packed(gx);
    forward.x.row_stride = forward.z.row_stride = forward.y.row_stride = WIDTH;
    forward.z.data = gz;
    forward.y.data = gy;
    /* Two heads a token, as it is told of z alone. */
    forward.z.group_rows = 2;
    forward.z.group_stride = 2 * WIDTH;
    forward.w = gw;
    succeeds(cake_rmsnorm_gated_forward(op, CAKE_RMSNORM_CPU, NULL, &forward), "gated forward");

    memset(&backward, 0, sizeof backward);
    backward.struct_size = sizeof backward;
    backward.rows = GATED_ROWS;
    backward.x = backward.dy = backward.dx = backward.dz = forward.x;
    backward.z = forward.z;
    backward.dy.data = gdy;
    backward.dx.data = gdx;
    backward.dz.data = gdz;
    backward.w = gw;
    backward.dw = gdw;
    succeeds(cake_rmsnorm_gated_backward(op, CAKE_RMSNORM_CPU, NULL, &backward), "gated backward");
    const uint16_t *const outputs[3] = {gy, gdx, gdz};
    const char *const names[3] = {"gated y", "gated dx", "gated dz"};
    for (unsigned output = 0; output < 3; output++) {
        printf("%s", names[output]);
        for (unsigned i = 0; i < GATED_ROWS * WIDTH; i++) {
            printf(" %04x", (unsigned)outputs[output][i]);
        }
        printf("\n");
    }
    print("gated dw", gdw, 1, WIDTH, 0);

    forward.x.group_rows = 3;
    is_refused(cake_rmsnorm_gated_forward(op, CAKE_RMSNORM_CPU, NULL, &forward),
               "z has 2 heads, expected 3");
    cake_rmsnorm_gated_destroy(op);
    config.order = 2;
    is_refused(cake_rmsnorm_gated_create(&config, &op), "config.order is 2: accepted are 0");
    expect(op == NULL, "no handle after a refusal");
}

static void refusals(const CakeRmsnormOperator *op) {
    static ALIGNED float y[ROWS * HIDDEN], h[ROWS * HIDDEN], dw[HIDDEN];
    CakeRmsnormForward forward = forward_args(y, h, NULL);
    CakeRmsnormBackward backward = backward_args(h, NULL, dw);
    CakeRmsnormConfig other = config();
    CakeRmsnormOperator *none = NULL;

    other.hidden = 65537;
    is_refused(cake_rmsnorm_create(&other, &none),
               "hidden size 65537 is not supported: accepted are 1 to 65,536");
    other = config();
    other.input = 9;
    is_refused(cake_rmsnorm_create(&other, &none), "config.input is 9: accepted are");
    other = config();
    other.struct_size = 4;
    is_refused(cake_rmsnorm_create(&other, &none), "config.struct_size is 4: accepted is 32");
    is_refused(cake_rmsnorm_create(NULL, &none), "config is a null pointer");
    is_refused(cake_rmsnorm_forward(NULL, CAKE_RMSNORM_CPU, NULL, &forward),
               "op is a null pointer");
    is_refused(cake_rmsnorm_forward(op, -2, NULL, &forward), "device is -2: accepted are");

    forward.x.data = NULL;
    is_refused(cake_rmsnorm_forward(op, CAKE_RMSNORM_CPU, NULL, &forward), "x is a null pointer");
    forward = forward_args(y, h, NULL);
    forward.w = NULL;
    is_refused(cake_rmsnorm_forward(op, CAKE_RMSNORM_CPU, NULL, &forward), "w is missing");
    forward = forward_args(y, NULL, NULL);
    is_refused(cake_rmsnorm_forward(op, CAKE_RMSNORM_CPU, NULL, &forward),
               "residual is given without h");
    forward = forward_args(y, y, NULL);
    is_refused(cake_rmsnorm_forward(op, CAKE_RMSNORM_CPU, NULL, &forward), "y overlaps h");
    backward.dw_update = 7;
    is_refused(cake_rmsnorm_backward(op, CAKE_RMSNORM_CPU, NULL, &backward),
               "args.dw_update is 7: accepted are 0");
    backward.dw_update = CAKE_RMSNORM_UPDATE_OVERWRITE;
    backward.dw = NULL;
    is_refused(cake_rmsnorm_backward(op, CAKE_RMSNORM_CPU, NULL, &backward),
               "neither dx nor dw is wanted");
}

int main(void) {
    CakeRmsnormConfig one = config();
    CakeRmsnormOperator *op = NULL;
    expect(cake_rmsnorm_abi_version() == CAKE_RMSNORM_ABI_VERSION, "the version");
    fill_rows(x, 1);
    fill(residual, 2, ROWS * HIDDEN);
    fill(dy, 3, ROWS * HIDDEN);
    fill(dh, 4, ROWS * HIDDEN);
    fill(w, 5, HIDDEN);
    succeeds(cake_rmsnorm_create(&one, &op), "an operator");
    the_residual_form(op);
    groups_of_rows(op);
    several_threads(op);
    plans(op);
    the_gated_form();
    refusals(op);
    cake_rmsnorm_destroy(op);
    cake_rmsnorm_destroy(NULL);
    return failures != 0;
}
