# What `cmake --install` puts where: the header, both libraries, a CMake package (find_package(fattn), targets fattn::fattn and
# fattn::static) and a pkg-config file (--static for libfattn.a).
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/fattn)
install(TARGETS fattn fattn_static EXPORT fattn-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES ${PROJECT_SOURCE_DIR}/include/fattn/fattn.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/fattn)
install(EXPORT fattn-targets NAMESPACE fattn:: DESTINATION ${package_dir})

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/fattn-config.cmake.in ${PROJECT_BINARY_DIR}/fattn-config.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/fattn-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/fattn-config.cmake ${PROJECT_BINARY_DIR}/fattn-config-version.cmake
  DESTINATION ${package_dir})

set(pkg_private "-lm ${CMAKE_THREAD_LIBS_INIT}")
if(FATTN_CUDA AND CMAKE_DL_LIBS)
  string(APPEND pkg_private " -l${CMAKE_DL_LIBS}")
endif()
string(STRIP "${pkg_private}" pkg_private)
if(FATTN_WITH_ONEDNN)
  string(PREPEND pkg_private "-ldnnl -lgomp ")
endif()
# The prefix is found from where the file lies, so that `cmake --install --prefix` and moved trees work.
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  set(pkg_prefix "${CMAKE_INSTALL_PREFIX}")
  set(pkg_libdir "${CMAKE_INSTALL_LIBDIR}")
else()
  file(RELATIVE_PATH up "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
  string(REGEX REPLACE "/$" "" up "${up}")
  set(pkg_prefix "\${pcfiledir}/${up}")
  set(pkg_libdir "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
endif()
if(IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
  set(pkg_includedir "${CMAKE_INSTALL_INCLUDEDIR}")
else()
  set(pkg_includedir "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
configure_file(${PROJECT_SOURCE_DIR}/cmake/fattn.pc.in ${PROJECT_BINARY_DIR}/fattn.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/fattn.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
