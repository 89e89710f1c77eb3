#![deny(unused_must_use)]
use pestle::{ops, View, ViewMut};

fn main() {
    let (data, mut result) = (vec![0f32; 64], vec![0f32; 64]);
    let x = View::new(&data, &[64]).unwrap();
    let mut out = ViewMut::new(&mut result, &[64]).unwrap();
    ops::softmax(&x, &mut out).dim(0);
}
