//! Whole files: quantised, watched, stopped half-way.
use pestle::files::{dequantize_file, diff_files, inspect_file, quantize_file, quietly};
use pestle::{Error, Status};
use serde_json::{json, Value};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// A folder of this test's own, gone at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("pestle-rust-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// A model of linear layers of f32, as safetensors.
    fn model(&self, layers: usize) -> PathBuf {
        const BYTES: usize = 64 * 128 * 4;
        let entries: Vec<String> = (0..layers)
            .map(|i| {
                let (begin, end) = (i * BYTES, (i + 1) * BYTES);
                format!(
                    r#""blocks.{i}.proj.weight":{{"dtype":"F32","shape":[64,128],"data_offsets":[{begin},{end}]}}"#
                )
            })
            .collect();
        let header = format!("{{{}}}", entries.join(","));
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        for i in 0..layers * 64 * 128 {
            bytes.extend((i as f32 * 0.01).sin().to_le_bytes());
        }
        let path = self.0.join("model.safetensors");
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn left_overs(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_model_goes_there_and_back() {
    let folder = Folder::new("round");
    let (model, codes, floats) = (folder.model(1), folder.path("q"), folder.path("f"));
    let mut told = 0;
    let report =
        quantize_file(&model, &codes, "int8-row", json!({"default_keep": false}), &mut |p| {
            assert!(p.done_bytes <= p.total_bytes && !p.stage.is_empty());
            told += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(told > 0);
    assert_eq!(report["layers"][0]["format"], "int8-row");
    assert!(report["layers"][0]["relative_error"].as_f64().unwrap() < 0.01);
    assert_eq!(inspect_file(&codes).unwrap()["layers"][0]["quantized"], true);

    dequantize_file(&codes, &floats, Value::Null, &mut quietly).unwrap();
    let difference = diff_files(&model, &floats, &mut quietly).unwrap();
    assert!(difference["layers"][0]["relative_error"].as_f64().unwrap() < 0.01);
}

#[test]
fn a_stopped_job_leaves_nothing() {
    let folder = Folder::new("stop");
    let model = folder.model(12);
    let mut stop = |_: pestle::files::Progress<'_>| ControlFlow::Break(());
    let options = json!({"default_keep": false});
    let error = quantize_file(&model, &folder.path("q"), "nvfp4", options, &mut stop).unwrap_err();
    assert_eq!(error.status(), Some(Status::Interrupted));
    assert!(!left_overs(&folder.0)
        .iter()
        .any(|name| name.starts_with('q') && !name.contains("lock")));
}

#[test]
fn a_panic_comes_out_where_it_belongs() {
    let folder = Folder::new("panic");
    let model = folder.model(1);
    let caught = std::panic::catch_unwind(|| {
        let mut fall = |_: pestle::files::Progress<'_>| panic!("from the progress function");
        let options = json!({"default_keep": false});
        let _ = quantize_file(&model, &folder.path("q"), "nvfp4", options, &mut fall);
    });
    let panic = caught.unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"from the progress function"));
}

#[test]
fn what_is_wrong_is_said() {
    let folder = Folder::new("wrong");
    let model = folder.model(1);
    let output = folder.path("q");
    let error = quantize_file(&model, &output, "int5", Value::Null, &mut quietly).unwrap_err();
    assert!(error.to_string().contains("int5"), "{error}");
    let twice = quantize_file(&model, &output, "int8", json!({"format": "fp8"}), &mut quietly);
    assert!(matches!(twice, Err(Error::Text(_))), "{twice:?}");
    let error = inspect_file(&folder.path("no_such_file")).unwrap_err();
    assert!(error.to_string().contains("no_such_file"), "{error}");
}
