// A warp-specialised matmul as CUTLASS builds it, for Hopper (TMA and wgmma) or, with BLACKWELL, for that (TMA and
// tcgen05): its kernel alone, for what its PTX looks like. Compiled by make.py, never run.
#include <cutlass/gemm/device/gemm_universal_adapter.h>

#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#ifdef BLACKWELL
using Arch = cutlass::arch::Sm100;
using LoadAndMultiply = cutlass::gemm::KernelTmaWarpSpecialized1SmSm100;
using Store = cutlass::epilogue::TmaWarpSpecialized1Sm;
using Cluster = cute::Shape<cute::_1, cute::_1, cute::_1>;
#else
using Arch = cutlass::arch::Sm90;
using LoadAndMultiply = cutlass::gemm::KernelTmaWarpSpecializedCooperative;
using Store = cutlass::epilogue::TmaWarpSpecializedCooperative;
using Cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;
#endif
using Tile = cute::Shape<cute::_128, cute::_128, cute::_64>;
using Row = cutlass::layout::RowMajor;
using Column = cutlass::layout::ColumnMajor;
using Half = cutlass::half_t;

using Epilogue =
    cutlass::epilogue::collective::CollectiveBuilder<Arch, cutlass::arch::OpClassTensorOp, Tile, Cluster,
                                                     cutlass::epilogue::collective::EpilogueTileAuto, float, float,
                                                     void, Row, 8, Half, Row, 8, Store>::CollectiveOp;
using Mainloop = cutlass::gemm::collective::CollectiveBuilder<
    Arch, cutlass::arch::OpClassTensorOp, Half, Row, 8, Half, Column, 8, float, Tile, Cluster,
    cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
    LoadAndMultiply>::CollectiveOp;
using Matmul = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int>, Mainloop, Epilogue>;

template __global__ void cutlass::device_kernel<Matmul>(CUTLASS_GRID_CONSTANT Matmul::Params const);
