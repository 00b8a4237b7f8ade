# -DSOP_CUDA=ON: nvcc, its flags, and the runtime, which is linked in: what is built here loads where
# there is no driver.
if(NOT CMAKE_CUDA_COMPILER)
  find_program(CMAKE_CUDA_COMPILER nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda
               PATH_SUFFIXES bin REQUIRED)
endif()
set(CMAKE_CUDA_ARCHITECTURES OFF) # each file names its own
enable_language(CUDA)
# What is needed of the toolkit, wherever it lies; CMake 3.25's own search fails beside nvcc of PyPI.
get_filename_component(SOP_CUDA_BIN ${CMAKE_CUDA_COMPILER} DIRECTORY)
find_path(SOP_CUDA_INCLUDE cuda_runtime_api.h REQUIRED NO_DEFAULT_PATH
          PATHS ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} ${SOP_CUDA_BIN}/../include)
find_library(SOP_CUDA_RUNTIME cudart_static REQUIRED NO_DEFAULT_PATH
             PATHS ${SOP_CUDA_BIN}/../lib64 ${SOP_CUDA_BIN}/../lib
                   ${CMAKE_CUDA_HOST_IMPLICIT_LINK_DIRECTORIES})
add_library(sop_cudart INTERFACE)
target_link_libraries(sop_cudart INTERFACE ${SOP_CUDA_RUNTIME} Threads::Threads rt ${CMAKE_DL_LIBS})
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_FLAGS "-O3 -Werror=all-warnings -Xcompiler=-fno-exceptions,-fno-rtti,-fno-threadsafe-statics")

# SM80: for compute capability 8.0 and, as PTX, all that come after. Machine code for 8.9 is made of the
# same PTX, which saves a fifth of the time to build; that for 9.0 has a pass of its own.
set(SOP_FLAGS_SM80 -gencode=arch=compute_80,code=[sm_80,sm_89,compute_80]
    -gencode=arch=compute_90a,code=sm_90a)
# SM90: wgmma and its kin, which run on 9.0 alone.
set(SOP_FLAGS_SM90 -gencode=arch=compute_90a,code=sm_90a)
set(CMAKE_CUDA_FLAGS_RELWITHDEBINFO -g) # in front of it stands -O3

# No object uses the C++ library: without exceptions and types at run time the launchers are as C. nvcc's
# stubs of kernels have a guarded static, but launch.cuh does not run them.
list(REMOVE_ITEM CMAKE_CUDA_IMPLICIT_LINK_LIBRARIES stdc++)
list(REMOVE_ITEM CMAKE_CUDA_HOST_IMPLICIT_LINK_LIBRARIES stdc++)

# The headers of CUTLASS, for its rows; without them these are left out.
if(NOT DEFINED SOP_CUTLASS OR (SOP_CUTLASS AND NOT EXISTS ${SOP_CUTLASS}))
  execute_process(COMMAND ${CMAKE_SOURCE_DIR}/tools/cuda.sh cutlass OUTPUT_VARIABLE found
    ERROR_VARIABLE why OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_STRIP_TRAILING_WHITESPACE)
  set(SOP_CUTLASS "${found}" CACHE PATH "Folder of CUTLASS's headers; empty: no rows of it" FORCE)
  if(NOT found)
    message(STATUS "Without the rows of CUTLASS: ${why}")
  endif()
endif()
# Its headers throw where they are not used; what the compiler keeps of them throws nothing.
set(SOP_FLAGS_CUTLASS --expt-relaxed-constexpr -Xcompiler=-fexceptions -I${SOP_CUTLASS})
