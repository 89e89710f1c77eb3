//! What a call allocates beside its result: nothing. Times depend on the machine, this does not.
#![cfg(not(feature = "cuda"))]
use candle_core::{DType, Device, Module, Result, Tensor};
use pestle::{ops, View, ViewMut};
use pestle_candle::{attention, layer_norm, matmul, rms_norm, softmax, Attention, Format, QLinear};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: the system's allocator, and a number beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allocations of the second of two calls.
fn allocations(mut call: impl FnMut()) -> usize {
    call();
    let before = COUNT.get();
    call();
    COUNT.get() - before
}

#[test]
fn a_typed_call_allocates_nothing() {
    let (values, mut result) = (vec![0.5f32; 256], vec![0f32; 256]);
    let count = allocations(|| {
        let x = View::new(&values, &[4, 64]).unwrap();
        let mut out = ViewMut::new(&mut result, &[4, 64]).unwrap();
        ops::softmax(&x, &mut out).dim(1).scale(1.0).run().unwrap();
    });
    assert_eq!(count, 0);
}

/// Memory, shape, strides, and candle's two counted pointers.
#[test]
fn an_op_allocates_its_result_and_no_more() {
    let x = Tensor::ones((4, 64), DType::F32, &Device::Cpu).unwrap();
    let (weight, bias) = (x.get(0).unwrap(), x.get(1).unwrap());
    let result = allocations(|| drop(x.affine(2.0, 0.0).unwrap()));
    let square = Tensor::ones((64, 64), DType::F32, &Device::Cpu).unwrap();
    let layer = QLinear::quantize(&square, None, Format::Int8Row).unwrap();
    let heads = x.unsqueeze(0).unwrap().unsqueeze(0).unwrap();
    let how = Attention::default();
    type Op<'f> = (&'f str, &'f dyn Fn() -> Result<Tensor>);
    let ops: [Op<'_>; 6] = [
        ("softmax", &|| softmax(&x, 1)),
        ("rms_norm", &|| rms_norm(&x, &weight, 1e-5)),
        ("layer_norm", &|| layer_norm(&x, &weight, &bias, 1e-5)),
        ("matmul", &|| matmul(&x, &square)),
        ("linear", &|| layer.forward(&x)),
        ("attention", &|| attention(&heads, &heads, &heads, &how)),
    ];
    for (name, op) in ops {
        let count = allocations(|| drop(op().unwrap()));
        assert!(count <= result, "{name}: {count} allocations, candle's affine has {result}");
    }
}
