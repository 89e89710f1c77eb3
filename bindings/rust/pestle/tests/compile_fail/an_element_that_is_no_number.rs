use pestle::View;

fn main() {
    let _ = View::new(&[true, false], &[2]);
}
