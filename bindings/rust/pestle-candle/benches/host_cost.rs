//! What a call costs beside its kernel, on a CPU: through the C ABI with arguments that are ready, by
//! the typed function, as candle's op, and what candle's own op of the same kind takes.
//!
//! cargo bench -p pestle-candle --bench host_cost
use candle_core::{DType, Device, Result, Tensor, Var};
use pestle::{ops, View, ViewMut};
use pestle_sys as sys;
use std::time::Instant;

/// Microseconds of one call: the least of many short rounds, which other work on the machine disturbs least.
/// One call where `cargo test` only sees whether it runs.
fn time(mut call: impl FnMut()) -> f64 {
    let is_bench = std::env::args().any(|arg| arg == "--bench");
    let (rounds, calls) = if is_bench { (500, 200) } else { (1, 1) };
    let round = |_| {
        let start = Instant::now();
        (0..calls).for_each(|_| call());
        start.elapsed().as_secs_f64() * 1e6 / f64::from(calls)
    };
    (0..rounds).map(round).fold(f64::INFINITY, f64::min)
}

fn tensor(data: *mut f32, shape: &[i64]) -> sys::pestle_tensor {
    sys::pestle_tensor {
        data: data.cast(),
        dtype: sys::PESTLE_F32 as i32,
        device_type: sys::PESTLE_CPU as i32,
        device_index: 0,
        rank: shape.len() as i32,
        shape: shape.as_ptr(),
        strides: std::ptr::null(),
        byte_offset: 0,
    }
}

/// The C call alone: softmax of [4, 64].
fn c_call(x: &mut [f32], out: &mut [f32]) -> f64 {
    let api = sys::api().expect("a library");
    let shape = [4i64, 64];
    let (x, out) = (tensor(x.as_mut_ptr(), &shape), tensor(out.as_mut_ptr(), &shape));
    let of = |kind: sys::pestle_kind, value| sys::pestle_arg { kind: kind as i32, count: 0, value };
    let given = |tensor: &sys::pestle_tensor| {
        of(sys::PESTLE_TENSOR, sys::pestle_arg__bindgen_ty_1 { tensor })
    };
    let args = [
        given(&x),
        of(sys::PESTLE_ABSENT, sys::pestle_arg__bindgen_ty_1 { i: 0 }),
        given(&out),
        of(sys::PESTLE_INT, sys::pestle_arg__bindgen_ty_1 { i: 1 }),
        of(sys::PESTLE_FLOAT, sys::pestle_arg__bindgen_ty_1 { f: 1.0 }),
    ];
    // SAFETY: an op of the table, whose arguments live here.
    let op = unsafe { (api.pestle_find_op)(c"softmax".as_ptr()) };
    time(|| {
        // SAFETY: as above.
        let status = unsafe { (api.pestle_call)(op, args.as_ptr(), args.len(), std::ptr::null()) };
        assert_eq!(status, sys::PESTLE_OK);
    })
}

fn main() -> Result<()> {
    let place = Device::Cpu;
    let (mut values, mut result) = (vec![0.5f32; 256], vec![0f32; 256]);
    let c = c_call(&mut values, &mut result);
    let typed = time(|| {
        let x = View::new(&values, &[4, 64]).unwrap();
        let mut out = ViewMut::new(&mut result, &[4, 64]).unwrap();
        ops::softmax(&x, &mut out).dim(1).scale(1.0).run().unwrap();
    });
    println!("softmax [4, 64]: C call {c:.2} us, typed call {typed:.2} us");

    let x = Tensor::from_vec(values, (4, 64), &place)?;
    let (weight, bias) = (Tensor::ones(64, DType::F32, &place)?, x.get(0)?);
    let tracked = Var::from_tensor(&x)?;
    let square = Tensor::ones((64, 64), DType::F32, &place)?;
    let layer = pestle_candle::QLinear::quantize(&square, None, pestle_candle::Format::Int8Row)?;
    let how = pestle_candle::Attention::default();
    type Row<'f> = (&'f str, &'f dyn Fn() -> Result<Tensor>, &'f dyn Fn() -> Result<Tensor>);
    let rows: [Row<'_>; 6] = [
        ("softmax", &|| pestle_candle::softmax(&x, 1), &|| candle_nn::ops::softmax_last_dim(&x)),
        ("softmax, tracked", &|| pestle_candle::softmax(&tracked, 1), &|| {
            candle_nn::ops::softmax(&tracked, 1)
        }),
        ("rms_norm", &|| pestle_candle::rms_norm(&x, &weight, 1e-5), &|| {
            candle_nn::ops::rms_norm(&x, &weight, 1e-5)
        }),
        ("layer_norm", &|| pestle_candle::layer_norm(&x, &weight, &bias, 1e-5), &|| {
            candle_nn::ops::layer_norm(&x, &weight, &bias, 1e-5)
        }),
        ("linear int8", &|| candle_core::Module::forward(&layer, &x), &|| x.matmul(&square)),
        ("attention", &|| pestle_candle::attention(&x, &x, &x, &how), &|| {
            candle_nn::ops::softmax_last_dim(&x.matmul(&x.t()?)?)?.matmul(&x)
        }),
    ];
    for (name, ours, theirs) in rows {
        let ours = time(|| drop(ours().unwrap()));
        let theirs = time(|| drop(theirs().unwrap()));
        println!("{name} [4, 64]: {ours:.2} us, candle's {theirs:.2} us");
    }
    Ok(())
}
