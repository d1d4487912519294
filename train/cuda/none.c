/* In builds without CUDA: there is no GPU to open. */
#include "train/device.h"
#include "train/error.h"

device *device_open_cuda(int32_t index)
{
    (void)index;
    train_fail("this program was built without CUDA, or without cuBLAS");
    return NULL;
}
