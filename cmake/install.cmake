# cmake --install: library, headers, command line, find_package(dosa) and pkg-config.
include(CMakePackageConfigHelpers)

install(TARGETS dosa EXPORT dosaTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/dosa DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.hpp")
if(TARGET dosa_cli)
  install(TARGETS dosa_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/dosa)
install(EXPORT dosaTargets NAMESPACE dosa:: DESTINATION ${package_dir})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/dosaConfig.cmake.in ${PROJECT_BINARY_DIR}/dosaConfig.cmake
  INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may break.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/dosaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/dosaConfig.cmake ${PROJECT_BINARY_DIR}/dosaConfigVersion.cmake
  DESTINATION ${package_dir})

# Where the prefix is named at install time (cmake --install --prefix), the file must follow it: pkg-config's own
# ${pcfiledir} does, as long as libdir lies under the prefix.
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  set(DOSA_PC_PREFIX ${CMAKE_INSTALL_PREFIX})
else()
  file(RELATIVE_PATH to_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
  set(DOSA_PC_PREFIX "\${pcfiledir}/${to_prefix}")
endif()
foreach(name LIBDIR INCLUDEDIR)
  if(IS_ABSOLUTE "${CMAKE_INSTALL_${name}}")
    set(DOSA_PC_${name} ${CMAKE_INSTALL_${name}})
  else()
    set(DOSA_PC_${name} "\${prefix}/${CMAKE_INSTALL_${name}}")
  endif()
endforeach()
# A static library needs oneTBB, threads and (where it has the CUDA backend) CUDA's runtime at every link, so a plain
# `pkg-config --libs dosa` has to name them.
if(BUILD_SHARED_LIBS)
  set(DOSA_PC_PRIVATE ".private")
  set(DOSA_PC_LIBS "")
else()
  set(DOSA_PC_PRIVATE "")
  set(DOSA_PC_LIBS " -pthread${DOSA_CUDA_LINK}")
endif()
configure_file(${CMAKE_CURRENT_LIST_DIR}/dosa.pc.in ${PROJECT_BINARY_DIR}/dosa.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/dosa.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
