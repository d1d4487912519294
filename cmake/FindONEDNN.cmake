# Finds oneDNN's header and library by name. Its own CMake package also asks for OpenCL, which sgemm does not need.
#
# Sets ONEDNN_FOUND, ONEDNN_INCLUDE_DIR, ONEDNN_LIBRARY and ONEDNN_VERSION.
find_path(ONEDNN_INCLUDE_DIR oneapi/dnnl/dnnl.h)
find_library(ONEDNN_LIBRARY dnnl)
if(ONEDNN_INCLUDE_DIR AND EXISTS ${ONEDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h)
  file(STRINGS ${ONEDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h lines REGEX "#define DNNL_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE "[^0-9;]" "" numbers "${lines}")
  list(JOIN numbers "." ONEDNN_VERSION)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(ONEDNN REQUIRED_VARS ONEDNN_LIBRARY ONEDNN_INCLUDE_DIR VERSION_VAR ONEDNN_VERSION)
mark_as_advanced(ONEDNN_INCLUDE_DIR ONEDNN_LIBRARY)
