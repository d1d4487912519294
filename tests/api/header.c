/* The public header compiles on its own as strict C, and twice. */
#include "fattn/fattn.h"

#include "fattn/fattn.h"

extern int api_header_check(void);

int api_header_check(void)
{
    const fattn_view view = fattn_view_bhsd(0, 1, 1, 1);
    const fattn_view other = fattn_view_bshd(0, 1, 1, 1);
    return fattn_version()[0] + (view.stride_row == other.stride_row);
}
