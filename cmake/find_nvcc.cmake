# The one rule for which nvcc compiles the CUDA backend: the first of at least DOSA_NVCC_WANTED among $CUDACXX, .cuda
# (scripts/cuda_toolkit), $CUDA_HOME, the usual folder and the PATH; an older one hides no good one.
# Included by src/cuda: sets DOSA_NVCC and, where there is none, DOSA_NVCC_ABSENT (why). As a script, for scripts/cuda_toolkit:
# `cmake -P cmake/find_nvcc.cmake` prints "found PATH VERSION" or "absent WHY".
set(DOSA_NVCC_WANTED 12.8)  # wgmma and setmaxnreg as the kernels use them, C++20

function(dosa_nvcc_version path result)
  execute_process(COMMAND ${path} --version OUTPUT_VARIABLE output ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed AND output MATCHES "V([0-9]+\\.[0-9]+\\.[0-9]+)")
    set(${result} ${CMAKE_MATCH_1} PARENT_SCOPE)
  else()
    set(${result} "" PARENT_SCOPE)
  endif()
endfunction()

# find_program calls it in a scope of its own; what was passed over is remembered in a property.
function(dosa_nvcc_is_good result path)
  dosa_nvcc_version(${path} version)
  if(NOT version)
    set(${result} FALSE PARENT_SCOPE)
    set_property(GLOBAL APPEND PROPERTY DOSA_NVCC_PASSED_OVER "${path} (does not run)")
  elseif(version VERSION_LESS DOSA_NVCC_WANTED)
    set(${result} FALSE PARENT_SCOPE)
    set_property(GLOBAL APPEND PROPERTY DOSA_NVCC_PASSED_OVER "${path} ${version}")
  endif()
endfunction()

get_filename_component(dosa_source ${CMAKE_CURRENT_LIST_DIR} DIRECTORY)
set(dosa_nvcc_folders "")
if(DEFINED ENV{CUDACXX})
  get_filename_component(folder "$ENV{CUDACXX}" DIRECTORY)
  list(APPEND dosa_nvcc_folders "${folder}")
endif()
list(APPEND dosa_nvcc_folders ${dosa_source}/.cuda/bin)
if(DEFINED ENV{CUDA_HOME})
  list(APPEND dosa_nvcc_folders "$ENV{CUDA_HOME}/bin")
endif()
list(APPEND dosa_nvcc_folders /usr/local/cuda/bin)
find_program(DOSA_NVCC nvcc HINTS ${dosa_nvcc_folders} VALIDATOR dosa_nvcc_is_good)

set(DOSA_NVCC_ABSENT "")
if(NOT DOSA_NVCC)
  get_property(passed_over GLOBAL PROPERTY DOSA_NVCC_PASSED_OVER)
  list(REMOVE_DUPLICATES passed_over)
  list(JOIN passed_over ", " passed_over)
  set(DOSA_NVCC_ABSENT "no nvcc of at least ${DOSA_NVCC_WANTED} found by the build")
  if(passed_over)
    string(APPEND DOSA_NVCC_ABSENT ", only ${passed_over}")
  endif()
  string(APPEND DOSA_NVCC_ABSENT "; scripts/cuda_toolkit installs one")
endif()

if(CMAKE_SCRIPT_MODE_FILE)
  if(DOSA_NVCC)
    dosa_nvcc_version(${DOSA_NVCC} version)
    set(answer "found ${DOSA_NVCC} ${version}")
  else()
    set(answer "absent ${DOSA_NVCC_ABSENT}")
  endif()
  execute_process(COMMAND ${CMAKE_COMMAND} -E echo "${answer}")  # message() would go to standard error
endif()
