# Compiler options shared by everything in this tree, and the tools picked up when present.

# Codes are defined by f32 arithmetic, operation by operation (docs/formats/README.md): the compiler
# may not contract a*b+c, nor assume that NaN, infinities or signed zeros are absent.
#
# Warnings are errors with the compiler that CI has. Newer ones warn of other things, some of them
# false (GCC 13 about Highway's copies), and should still build.
set(default_werror OFF)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  set(default_werror ON)
endif()
option(PESTLE_WERROR "Warnings of the C++ compiler are errors" ${default_werror})

add_library(pestle_options INTERFACE)
target_include_directories(pestle_options INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/include)
target_compile_options(pestle_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra $<$<BOOL:${PESTLE_WERROR}>:-Werror>
                            -ffp-contract=off -fno-fast-math -fvisibility=hidden -fvisibility-inlines-hidden>
  # False alarms about std::string's operator+ in GCC 12 (bug 105651).
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>)

# SIMD files are compiled once per Highway target: the compiler's baseline, AVX2 and AVX3 (AVX-512
# F/BW/DQ/VL). The rest adds compile time and no speed that a bar asks for. By bit, because older
# Highways lack some names: AVX10.2, AVX3_SPR, reserved, AVX3_ZEN4, AVX3_DL, SSE4, SSSE3.
set(PESTLE_HWY_DISABLED 0x18F8 CACHE STRING "Highway targets that are not compiled (bit mask)")
target_compile_definitions(pestle_options INTERFACE HWY_DISABLED_TARGETS=${PESTLE_HWY_DISABLED})
# One target instead, that of the architecture named: a fraction of the compile time, and the programs
# run on no lesser machine. A sanitizer's builds do so, since every target is the same source.
set(default_simd_arch "")
if(PESTLE_SANITIZE AND CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
  set(default_simd_arch x86-64-v3)  # AVX2
endif()
set(PESTLE_SIMD_ARCH "${default_simd_arch}" CACHE STRING
    "Compile SIMD files once, for this -march; empty: for each Highway target, chosen at run time")
if(PESTLE_SIMD_ARCH)
  # Without the second, Highway takes an architecture that leaves AES out for one with no SIMD at all.
  target_compile_definitions(pestle_options INTERFACE HWY_COMPILE_ONLY_STATIC HWY_DISABLE_PCLMUL_AES)
  target_compile_options(pestle_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-march=${PESTLE_SIMD_ARCH}>)
endif()

if(PESTLE_SANITIZE)
  add_compile_options(-fsanitize=${PESTLE_SANITIZE} -fno-sanitize-recover=all
                      -fno-omit-frame-pointer)
  if(PESTLE_SANITIZE MATCHES "address.*undefined")
    # What they look for ends at AddressSanitizer too; they cost a fifth of the compile time.
    add_compile_options(-fno-sanitize=null,object-size)
  endif()
  add_link_options(-fsanitize=${PESTLE_SANITIZE})
  if(PESTLE_SANITIZE STREQUAL "thread")
    # gcc knows no fences under this sanitizer; Asio's queue is ordered by its mutex anyway.
    add_compile_definitions(ASIO_DISABLE_FENCED_BLOCK)
  endif()
endif()

find_program(PESTLE_CCACHE ccache)
if(PESTLE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${PESTLE_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${PESTLE_CCACHE})
endif()
# For nvcc the cache must go by the files that were read: what the preprocessor prints is one
# architecture's view, so an edit inside another's #if would be served the old object.
# And nvcc is known by what it holds: pip gives each installation a time of its own.
if(PESTLE_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_DEPEND=1 CCACHE_COMPILERCHECK=content
      ${PESTLE_CCACHE})
endif()

# A faster linker if one is there; the programs are the same.
find_program(PESTLE_MOLD mold)
find_program(PESTLE_LLD ld.lld)
if(PESTLE_MOLD)
  add_link_options(-fuse-ld=mold)
elseif(PESTLE_LLD)
  add_link_options(-fuse-ld=lld)
endif()
