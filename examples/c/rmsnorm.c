/* One operator: plan it once, run it many times.
 *
 *     cc rmsnorm.c -o rmsnorm $(pkg-config --cflags --libs superop) && ./rmsnorm */
#include <sop/plan.h>
#include <stdio.h>

enum { TOKENS = 2, DIM = 4 };

static sop_status normalise(sop_device *device, sop_planner *planner, const float *x,
                            const float *w, float *y)
{
    const sop_rmsnorm_desc desc = {.tokens = TOKENS, .dim = DIM, .eps = 1e-6f};
    sop_operand args[SOP_RMSNORM_ROLES] = {{0}}; /* what stays NULL is absent */
    sop_plan *plan = NULL;
    sop_queue *queue = NULL;
    args[SOP_RMSNORM_X] = (sop_operand){(void *)x, TOKENS * DIM * sizeof *x};
    args[SOP_RMSNORM_W] = (sop_operand){(void *)w, DIM * sizeof *w};
    args[SOP_RMSNORM_Y] = (sop_operand){y, TOKENS * DIM * sizeof *y};

    /* sop_plan_create(planner, sop_op_find("rmsnorm"), &desc, &plan) is the same for any op. */
    sop_status s = sop_plan_rmsnorm(planner, &desc, &plan);
    if (s == SOP_OK) s = device->ops->queue_create(device, &queue);
    if (s == SOP_OK) s = sop_plan_run(plan, queue, args, NULL); /* its scratch is 0 bytes */
    if (s == SOP_OK) s = device->ops->wait(queue);
    if (s == SOP_OK) printf("%s:\n", sop_plan_variant(plan));
    if (queue) device->ops->queue_destroy(queue);
    sop_plan_destroy(plan);
    return s;
}

int main(void)
{
    const float x[TOKENS * DIM] = {1, 2, 3, 4, -1, 0, 0, 1}, w[DIM] = {1, 1, 1, 2};
    float y[TOKENS * DIM];
    sop_device *device = NULL;
    sop_planner *planner = NULL;
    sop_status s = sop_device_cpu(0, &device);
    if (s == SOP_OK) s = sop_planner_create(device, "", &planner);
    if (s == SOP_OK) s = normalise(device, planner, x, w, y);
    if (s == SOP_OK)
        for (int t = 0; t < TOKENS; t++)
            printf("  %7.4f %7.4f %7.4f %7.4f\n", (double)y[4 * t], (double)y[4 * t + 1],
                   (double)y[4 * t + 2], (double)y[4 * t + 3]);
    else
        fprintf(stderr, "%s\n", sop_last_error());
    sop_planner_destroy(planner);
    sop_device_destroy(device);
    return s != SOP_OK;
}
