// Gather and scatter of pages for what the copy engines are not used for. Launch with a grid of (pages, layers) and a block of 256;
// the one argument is a loadback_pages by value.
#define LOADBACK_LANE static inline __attribute__((device))
#define LOADBACK_GLOBAL __attribute__((address_space(1)))
#include "page_lane.h"

#define LOADBACK_BLOCK 256
#define LOADBACK_KERNEL extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(LOADBACK_BLOCK, LOADBACK_BLOCK))) void

LOADBACK_KERNEL loadback_gather_pages(const loadback_pages work) {
  loadback_gather_lane(work, __builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(), __builtin_amdgcn_workitem_id_x(),
                       LOADBACK_BLOCK);
}

LOADBACK_KERNEL loadback_scatter_pages(const loadback_pages work) {
  loadback_scatter_lane(work, __builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(), __builtin_amdgcn_workitem_id_x(),
                        LOADBACK_BLOCK);
}
