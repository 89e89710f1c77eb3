# The CUDA backend: backends/cuda and ops, linked with the static runtime. The compiler
# may be the one of PyPI's wheels, which has lib/ where CMake and nvcc look for lib64/.
if(NOT CMAKE_CUDA_COMPILER AND DEFINED ENV{CUDA_HOME})
  find_program(CMAKE_CUDA_COMPILER nvcc PATHS $ENV{CUDA_HOME}/bin NO_DEFAULT_PATH)
endif()
if(NOT CMAKE_CUDA_COMPILER)
  find_program(CMAKE_CUDA_COMPILER nvcc
    HINTS ${CMAKE_SOURCE_DIR}/.venv/cuda/nvidia/cu13/bin /usr/local/cuda/bin)
  if(NOT CMAKE_CUDA_COMPILER)
    message(FATAL_ERROR "no nvcc: run tools/setup.sh cuda, give CMAKE_CUDA_COMPILER, or build "
                        "without CUDA: PESTLE_CUDA=OFF (docs/building.md)")
  endif()
endif()
get_filename_component(cuda_root ${CMAKE_CUDA_COMPILER} REALPATH)
get_filename_component(cuda_root ${cuda_root} DIRECTORY)
get_filename_component(cuda_root ${cuda_root} DIRECTORY)
set(ENV{LIBRARY_PATH} ${cuda_root}/lib)
if(NOT CUDAToolkit_ROOT)
  set(CUDAToolkit_ROOT ${cuda_root})
endif()
if(NOT CUDA_CUDART AND NOT EXISTS ${cuda_root}/lib64 AND EXISTS ${cuda_root}/lib/libcudart.so.13)
  set(CUDA_CUDART ${cuda_root}/lib/libcudart.so.13)
endif()

# Ampere and later by the portable path, Hopper with wgmma and TMA (docs/building.md).
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real)
endif()
# The code that other GPUs run, forced on a Hopper one: compiled for 80 or plain 90, assembled for
# sm_90, and dispatched as on such a device.
set(PESTLE_CUDA_PORTABLE "" CACHE STRING "80 or 90: only that architecture's code, run on sm_90")
if(PESTLE_CUDA_PORTABLE)
  set(CMAKE_CUDA_ARCHITECTURES OFF)
  string(APPEND CMAKE_CUDA_FLAGS " -gencode arch=compute_${PESTLE_CUDA_PORTABLE},code=sm_90")
  target_compile_definitions(pestle_options INTERFACE
    $<$<COMPILE_LANGUAGE:CUDA>:PESTLE_CUDA_PORTABLE=${PESTLE_CUDA_PORTABLE}>)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
find_package(CUDAToolkit 13.0 REQUIRED)

# Kernels are stored small (a quarter of the default's bytes): drivers from 580 on unpack that. Flags
# that say how they are stored otherwise, as CI's do, have their way.
if(NOT CMAKE_CUDA_FLAGS MATCHES "compress-mode")
  target_compile_options(pestle_options INTERFACE
    $<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=size>)
endif()
# Codes come from the same scalar functions as on the host, so no contraction here either.
target_compile_options(pestle_options INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:
  -fmad=false -Werror=all-warnings -Xcompiler=-Wall,-Wextra,-ffp-contract=off,-fvisibility=hidden>)

if(PESTLE_CUDA_LINEINFO)
  target_compile_options(pestle_options INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-lineinfo>)
endif()
if(PESTLE_CUDA_DEBUG)
  target_compile_options(pestle_options INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-G>)
endif()

file(GLOB PESTLE_CUDA_SOURCES CONFIGURE_DEPENDS 
  backends/cuda/*/*.cu ops/*/*.cu ops/*/*/*.cu ops/*/*/*/*.cu)
list(APPEND PESTLE_SOURCES ${PESTLE_CUDA_SOURCES})
set(PESTLE_CUDA_LIBRARIES CUDA::cudart_static)
# Only the table's expansion asks, so the other objects are those of a build without CUDA.
set_source_files_properties(ops/table.cpp PROPERTIES COMPILE_DEFINITIONS PESTLE_WITH_CUDA=1)
