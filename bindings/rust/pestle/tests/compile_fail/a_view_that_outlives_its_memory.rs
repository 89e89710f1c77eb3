use pestle::View;

fn main() {
    let view = {
        let data = vec![0f32; 64];
        View::new(&data, &[64]).unwrap()
    };
    drop(view);
}
