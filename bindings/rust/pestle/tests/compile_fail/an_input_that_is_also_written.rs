use pestle::{ops, View, ViewMut};

fn main() {
    let mut data = vec![0f32; 64];
    let x = View::new(&data, &[1, 64]).unwrap();
    let mut out = ViewMut::new(&mut data, &[1, 64]).unwrap();
    ops::hadamard(&x, &mut out).run().unwrap();
}
