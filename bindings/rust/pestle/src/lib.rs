//! Pestle from Rust: a typed call for every op of the table, on tensors of any strides.
//!
//! ```no_run
//! use pestle::{ops, View, ViewMut, DType};
//! # fn main() -> pestle::Result<()> {
//! let x: Vec<f32> = (0..8 * 256).map(|i| (i as f32 * 0.1).sin()).collect();
//! let (mut codes, mut scale) = (vec![0u8; 8 * 256], vec![0f32; 8]);
//! ops::quantize_fp8(
//!     &View::new(&x, &[8, 256])?,
//!     &mut ViewMut::coded(&mut codes, DType::E4M3, &[8, 256])?,
//! )
//! .scale_out(&mut ViewMut::new(&mut scale, &[8, 1])?)
//! .granularity(ops::quantize_fp8::Granularity::Row)
//! .run()?;
//! # Ok(())
//! # }
//! ```
//!
//! What an op writes is borrowed for as long as the call lives, so it cannot be read meanwhile:
//!
//! ```compile_fail
//! # use pestle::{ops, View, ViewMut};
//! let mut data = vec![0f32; 64];
//! let x = View::new(&data, &[1, 64]).unwrap();
//! let mut out = ViewMut::new(&mut data, &[1, 64]).unwrap(); // also borrowed by x
//! ops::hadamard(&x, &mut out).run().unwrap();
//! ```
//!
//! Every op reads and writes memory that the caller owns. An error carries the library's sentence,
//! which names the op, the argument, its value and the rule.

mod call;
mod error;
pub mod files;
mod library;
mod op_macro;
pub mod ops;
mod view;
mod workspace;

pub use half;

pub use call::{Prepared, Run};
pub use error::{Error, Result, Status};
pub use library::{contract, load_tuned, set_cpu_isa, set_threads, table, version, Argument, Op};
pub use view::{DType, Device, Element, View, ViewMut};
pub use workspace::{Stream, Workspace};
