// Barriers in shared memory, the copy engine and the sharing of registers of compute capability 9.0a.
#pragma once

// TensorMap is CUtensorMap: a matrix in device memory, and the box that one copy takes of it.
struct __align__(64) TensorMap {
    u64 words[16];
};

DEV void barrier_init(u32 bar, u32 count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory"); }

// barrier_ready shows fresh barriers to the copy engine.
DEV void barrier_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// barrier_expect arrives and lets the barrier wait for so many bytes of copies.
DEV void barrier_expect(u32 bar, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

DEV void barrier_arrive(u32 bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory"); }

// barrier_wait waits until the phase of this parity is over.
DEV void barrier_wait(u32 bar, u32 parity) {
    asm volatile("{\n"
                 ".reg .pred over;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
                 "@over bra done;\n"
                 "bra again;\n"
                 "done:\n"
                 "}" ::"r"(bar), "r"(parity)
                 : "memory");
}

// box_load starts the copy of the box at (column, row) to shared memory; its bytes count at bar.
DEV void box_load(u32 dst, const TensorMap *map, int column, int row, u32 bar) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(dst),
                 "l"(map), "r"(column), "r"(row), "r"(bar)
                 : "memory");
}

// registers_give and registers_take move registers between warpgroups of a block.
template <int N> DEV void registers_give() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> DEV void registers_take() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }

// group_sync waits for the other threads of a warpgroup; barrier 0 is the block's.
DEV void group_sync(int group) { asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory"); }

// Blocks of a cluster reach each other's shared memory: rank is this block's place in its cluster.
DEV u32 cluster_rank() {
    u32 r;
    asm volatile("mov.u32 %0, %cluster_ctarank;" : "=r"(r));
    return r;
}

DEV void cluster_sync() {
    asm volatile("barrier.cluster.arrive.aligned;\n"
                 "barrier.cluster.wait.aligned;" ::: "memory");
}

// barrier_arrive_at arrives at the barrier at the same place in the block of this rank. It orders no memory beyond this
// block: what it says is that reads are over.
DEV void barrier_arrive_at(u32 bar, u32 rank) {
    asm volatile("{\n"
                 ".reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
                 "}" ::"r"(bar), "r"(rank)
                 : "memory");
}

// box_load_all is box_load into the same place of every block of the cluster whose bit is set in blocks; the bytes count
// at each one's own barrier.
DEV void box_load_all(u32 dst, const TensorMap *map, int column, int row, u32 bar, u16 blocks) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], "
                 "[%4], %5;" ::"r"(dst),
                 "l"(map), "r"(column), "r"(row), "r"(bar), "h"(blocks)
                 : "memory");
}

// place_in is where an address of this block's shared memory lies in the block of this rank.
DEV u32 place_in(u32 addr, u32 rank) {
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(addr), "r"(rank));
    return there;
}

// send writes four values into a block of the cluster; its barrier counts the bytes once they are there.
DEV void send(u32 there, float4 v, u32 bar) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(there), "f"(v.x),
                 "f"(v.y), "f"(v.z), "f"(v.w), "r"(bar)
                 : "memory");
}
