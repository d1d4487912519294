// The public header compiles on its own as C++.
#include "fattn/fattn.h"

extern int api_header_check();

int api_header_check()
{
    fattn_desc desc = {};
    desc.struct_size = sizeof desc;
    const fattn_view view = fattn_view_bhsd(nullptr, 1, 1, 1);
    return fattn_version()[0] + static_cast<int>(view.stride_row) + desc.mask;
}
