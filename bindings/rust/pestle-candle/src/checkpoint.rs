//! Quantised checkpoints: safetensors in ComfyUI's layout, the plain one of `pestle quantize`, GPTQ and AWQ,
//! and GGUF.
use crate::gguf;
use crate::memory::{launch, In, Out};
use crate::qlinear::QLinear;
use crate::weight::{label, Weight};
use candle_core::quantized::{gguf_file, GgmlDType};
use candle_core::{bail, DType, Device, Error, Result, Shape, Tensor};
use memmap2::Mmap;
use pestle::ops;
use safetensors::tensor::{Dtype, Metadata};
use serde_json::Value;
use std::collections::HashMap;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a tensor's bytes are.
#[derive(Clone, Copy, PartialEq)]
enum Encoding {
    Elements(Dtype),
    Blocks(GgmlDType),
}

/// A tensor in blocks: their type, its dimensions, and the bytes.
type Blocks<'c> = (GgmlDType, &'c [usize], &'c [u8]);

/// Where a tensor is: its file, and its bytes behind the file's header.
struct Stored {
    file: usize,
    encoding: Encoding,
    shape: Vec<usize>,
    bytes: (usize, usize),
}

/// The bytes of a file.
enum Bytes {
    Mapped(Mmap),
    Read(Vec<u8>),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map,
            Bytes::Read(bytes) => bytes,
        }
    }
}

/// Files of one model, each with where its tensors begin.
pub struct Checkpoint {
    files: Vec<(Bytes, usize)>,
    tensors: HashMap<String, Stored>,
    /// What the files say of their layers: name to description.
    layers: HashMap<String, Value>,
    gptq_v2: bool,
}

fn file_error(path: &Path, error: impl std::fmt::Display) -> Error {
    Error::Msg(format!("{}: {error}", path.display())).bt()
}

impl Checkpoint {
    /// Opens the files of a model, safetensors or GGUF, without reading more than their headers.
    ///
    /// # Safety
    /// The files are mapped: nobody may change them meanwhile. [`Checkpoint::read`] asks for no promise.
    pub unsafe fn open<P: AsRef<Path>>(paths: &[P]) -> Result<Checkpoint> {
        Checkpoint::of(paths, |path| {
            let file = std::fs::File::open(path)?;
            // SAFETY: the caller keeps others from changing it.
            Ok(Bytes::Mapped(unsafe { Mmap::map(&file) }?))
        })
    }

    /// Reads the files of a model into memory.
    pub fn read<P: AsRef<Path>>(paths: &[P]) -> Result<Checkpoint> {
        Checkpoint::of(paths, |path| Ok(Bytes::Read(std::fs::read(path)?)))
    }

    fn of<P: AsRef<Path>>(
        paths: &[P],
        bytes_of: impl Fn(&Path) -> std::io::Result<Bytes>,
    ) -> Result<Checkpoint> {
        let mut all = Checkpoint {
            files: Vec::new(),
            tensors: HashMap::new(),
            layers: HashMap::new(),
            gptq_v2: false,
        };
        for path in paths.iter().map(AsRef::as_ref) {
            all.add(path, bytes_of(path).map_err(|error| file_error(path, error))?)?;
        }
        Ok(all)
    }

    fn add(&mut self, path: &Path, map: Bytes) -> Result<()> {
        if map.starts_with(b"GGUF") {
            return self.add_gguf(path, map);
        }
        let (length, header) = safetensors::SafeTensors::read_metadata(&map)
            .map_err(|error| file_error(path, error))?;
        let index = self.files.len();
        for (name, info) in header.tensors() {
            let (encoding, shape) = (Encoding::Elements(info.dtype), info.shape.clone());
            let entry = Stored { file: index, encoding, shape, bytes: info.data_offsets };
            self.insert(path, &name, entry)?;
        }
        self.read_descriptions(path, &header)?;
        self.files.push((map, 8 + length));
        Ok(())
    }

    fn add_gguf(&mut self, path: &Path, map: Bytes) -> Result<()> {
        let header = gguf_file::Content::read(&mut std::io::Cursor::new(&map[..]))
            .map_err(|error| file_error(path, error))?;
        for (name, info) in &header.tensor_infos {
            let encoding = match info.ggml_dtype {
                GgmlDType::F32 => Encoding::Elements(Dtype::F32),
                GgmlDType::F16 => Encoding::Elements(Dtype::F16),
                GgmlDType::BF16 => Encoding::Elements(Dtype::BF16),
                blocks => Encoding::Blocks(blocks),
            };
            let (shape, begin) = (info.shape.dims().to_vec(), info.offset as usize);
            let size = gguf::bytes_of(info.ggml_dtype, &shape)
                .map_err(|error| file_error(path, format!("{name}: {error}")))?;
            let bytes = (begin, begin.saturating_add(size));
            let entry = Stored { file: self.files.len(), encoding, shape, bytes };
            self.insert(path, name, entry)?;
        }
        self.files.push((map, header.tensor_data_offset as usize));
        Ok(())
    }

    fn insert(&mut self, path: &Path, name: &str, entry: Stored) -> Result<()> {
        if self.tensors.insert(name.to_string(), entry).is_some() {
            bail!("{}: a tensor {name} is in another file, too", path.display());
        }
        Ok(())
    }

    fn read_descriptions(&mut self, path: &Path, header: &Metadata) -> Result<()> {
        let Some(metadata) = header.metadata() else { return Ok(()) };
        self.gptq_v2 |= metadata.get("checkpoint_format").is_some_and(|text| text == "gptq_v2");
        // The entry of pestle first: it also knows sizes before padding.
        for key in ["pestle", "_quantization_metadata"] {
            let Some(text) = metadata.get(key) else { continue };
            let entry: Value = serde_json::from_str(text)
                .map_err(|error| file_error(path, format!("metadata {key}: {error}")))?;
            let Some(layers) = entry["layers"].as_object() else { continue };
            for (name, layer) in layers {
                self.layers.entry(name.clone()).or_insert_with(|| layer.clone());
            }
        }
        Ok(())
    }

    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The names of all tensors, as stored.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// A tensor as it is stored; 8-bit types that candle lacks come as bytes.
    pub fn tensor(&self, name: &str, device: &Device) -> Result<Tensor> {
        let (stored, bytes) = self.stored(name)?;
        let dtype = match stored.encoding {
            Encoding::Elements(dtype) => dtype,
            Encoding::Blocks(kind) => bail!("{name} is {kind:?} of GGUF: float() decodes it"),
        };
        let dtype = match dtype {
            Dtype::F32 => DType::F32,
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::BF16,
            Dtype::F64 => DType::F64,
            Dtype::I64 => DType::I64,
            Dtype::I32 => DType::I32,
            Dtype::I16 => DType::I16,
            Dtype::U32 => DType::U32,
            Dtype::BOOL | Dtype::U8 | Dtype::I8 => DType::U8,
            Dtype::F8_E4M3 | Dtype::F8_E5M2 | Dtype::F8_E8M0 => DType::U8,
            other => bail!("{name}: safetensors dtype {other:?} is not read"),
        };
        Tensor::from_raw_buffer(bytes, dtype, &stored.shape, device)
    }

    fn stored(&self, name: &str) -> Result<(&Stored, &[u8])> {
        let Some(stored) = self.tensors.get(name) else {
            bail!("no tensor {name} in the checkpoint");
        };
        let (map, start) = &self.files[stored.file];
        let (begin, end) = stored.bytes;
        let bytes = map
            .get(start.saturating_add(begin)..start.saturating_add(end))
            .ok_or_else(|| Error::Msg(format!("{name}: the file ends before it does")).bt())?;
        Ok((stored, bytes))
    }

    /// The blocks of a tensor that is stored in GGUF's.
    fn blocks(&self, name: &str) -> Result<Option<Blocks<'_>>> {
        if !self.contains(name) {
            return Ok(None);
        }
        let (stored, bytes) = self.stored(name)?;
        Ok(match stored.encoding {
            Encoding::Blocks(kind) => Some((kind, &stored.shape, bytes)),
            Encoding::Elements(_) => None,
        })
    }

    fn f32(&self, name: &str, device: &Device) -> Result<Tensor> {
        self.tensor(name, device)?.to_dtype(DType::F32)
    }

    fn dtype(&self, name: &str) -> Option<Dtype> {
        match self.tensors.get(name)?.encoding {
            Encoding::Elements(dtype) => Some(dtype),
            Encoding::Blocks(_) => None,
        }
    }

    /// ComfyUI's description of a layer, wherever it is, with pestle's beside it.
    fn description(&self, layer: &str) -> Result<Option<Value>> {
        let name = format!("{layer}.comfy_quant");
        if !self.contains(&name) {
            return Ok(self.layers.get(layer).cloned());
        }
        let bytes: Vec<u8> = self.tensor(&name, &Device::Cpu)?.flatten_all()?.to_vec1()?;
        let mut found: Value = serde_json::from_slice(&bytes)
            .map_err(|error| Error::Msg(format!("{name}: {error}")).bt())?;
        if let Some(shape) = self.layers.get(layer).and_then(|known| known.get("shape")) {
            found["shape"] = shape.clone();
        }
        Ok(Some(found))
    }

    /// Whether a linear layer is quantised here.
    pub fn is_quantized(&self, layer: &str) -> bool {
        self.contains(&format!("{layer}.qweight"))
            || self.contains(&format!("{layer}.comfy_quant"))
            || self.layers.contains_key(layer)
            || matches!(self.blocks(&format!("{layer}.weight")), Ok(Some(_)))
    }

    /// A quantised linear layer by its name, without `.weight`; its bias comes along.
    pub fn qlinear(&self, layer: &str, device: &Device) -> Result<QLinear> {
        let bias = format!("{layer}.bias");
        let bias = if self.contains(&bias) { Some(self.tensor(&bias, device)?) } else { None };
        if self.contains(&format!("{layer}.qweight")) {
            return crate::packed::linear(self, layer, bias, self.gptq_v2, device);
        }
        if let Some((kind, shape, bytes)) = self.blocks(&format!("{layer}.weight"))? {
            let weight = gguf::weight(bytes, kind, shape, device)
                .map_err(|error| Error::Msg(format!("{layer}: {error}")).bt())?;
            let (n, k) = weight.shape()?;
            return QLinear::with_shape(weight, bias, n, k);
        }
        let Some(description) = self.description(layer)? else {
            bail!("{layer} is not quantised in the checkpoint, or is not there");
        };
        let weight = self.weight(layer, &description, device)?;
        let (mut n, mut k) = weight.shape()?;
        if let Some(shape) = description["shape"].as_array() {
            let size = |at: usize| shape.get(at).and_then(Value::as_u64).map(|size| size as usize);
            (n, k) = (size(0).unwrap_or(n), size(1).unwrap_or(k));
        } else if let Some(bias) = &bias {
            n = bias.elem_count().min(n); // padded rows have no bias
        }
        QLinear::with_shape(weight, bias, n, k)
    }

    /// The tensors of a layer in ComfyUI's layout or the plain one, which differ in a few shapes.
    fn weight(&self, layer: &str, description: &Value, device: &Device) -> Result<Weight> {
        let Some(format) = description["format"].as_str() else {
            bail!("{layer}: its description names no format: {description}");
        };
        let name = |suffix: &str| format!("{layer}.{suffix}");
        let codes = self.tensor(&name("weight"), device)?;
        let (n, bytes) = codes.dims2()?;
        let bytes_of = |suffix: &str| self.tensor(&name(suffix), device);
        let scales = || self.f32(&name("weight_scale"), device);
        let is_turned = description["convrot"] == true
            || matches!(format, "int8-convrot" | "convrot_w4a4" | "w4a4-convrot" | "w4a8");
        let turned = description["convrot_groupsize"].as_u64().unwrap_or(256) as usize;
        let hadamard = if is_turned { turned } else { 0 };
        Ok(match format {
            "float8_e4m3fn" | "float8_e5m2" | "fp8" | "fp8-e5m2" | "fp8-row" | "fp8-block" => {
                let e5m2 = self.dtype(&name("weight")) == Some(Dtype::F8_E5M2);
                let (scale, granularity) = grid(scales()?, n)?;
                Weight::Fp8 { codes, e5m2, scale, granularity }
            }
            "int8_tensorwise" | "int8" | "int8-row" | "int8-convrot" => {
                let (scale, granularity) = grid(scales()?, n)?;
                Weight::Int8 { codes, scale, granularity, group_size: 0, hadamard }
            }
            "nvfp4" => {
                let scale = bytes_of("weight_scale")?;
                let global = self.f32(&name("weight_scale_2"), device)?.reshape(1)?;
                let comfy = self.contains(&name("comfy_quant"));
                Weight::Nvfp4 { codes, scale, global, high_first: comfy, swizzled: comfy }
            }
            "mxfp8" => {
                let swizzled = self.contains(&name("comfy_quant"));
                Weight::Mxfp8 { codes, scale: bytes_of("weight_scale")?, swizzled }
            }
            "mxfp4" => {
                let scale = bytes_of("weight_scale")?;
                Weight::Mxfp4 { codes, scale, high_first: false, swizzled: false }
            }
            "int4-g32" | "int4-g64" | "int4-g128" => {
                let scale = scales()?;
                let group_size = bytes * 2 / scale.dim(1)?.max(1);
                Weight::Int4 { codes, scale, zero: None, group_size, hadamard: 0 }
            }
            "convrot_w4a4" | "w4a4-convrot" => {
                let scale = scales()?.reshape((n, 1))?;
                Weight::Int4 { codes, scale, zero: None, group_size: 0, hadamard }
            }
            "asym_w4a8_int8" | "w4a8" => Weight::W4a8 {
                codes,
                scale_rel: bytes_of("weight_s_rel")?,
                scale_channel: self.f32(&name("weight_s_channel"), device)?,
                codebook: Some(self.f32(&name("weight_codebook"), device)?),
                hadamard,
            },
            other => bail!("{layer}: format {other} is not known"),
        })
    }

    /// Candle's `VarBuilder` over this checkpoint, as [`var_builder`] makes one.
    pub fn into_var_builder(self, dtype: DType, device: &Device) -> candle_nn::VarBuilder<'static> {
        candle_nn::VarBuilder::from_backend(Box::new(Decoded(self)), dtype, device.clone())
    }

    /// A tensor as floats, decoded if it is a quantised layer's weight.
    pub fn float(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        if let Some((kind, shape, bytes)) = self.blocks(name)? {
            let made = if dtype == DType::F64 { DType::F32 } else { dtype };
            return gguf::decoded(bytes, kind, shape, made, device)?.to_dtype(dtype);
        }
        match name.strip_suffix(".weight") {
            Some(layer) if self.is_quantized(layer) => {
                self.qlinear(layer, device)?.dequantize(match dtype {
                    DType::F64 => DType::F32,
                    other => other,
                })
            }
            _ => self.tensor(name, device)?.to_dtype(dtype),
        }
    }
}

/// Scales in the shape that the ops ask for, and which elements share one.
fn grid(scale: Tensor, rows: usize) -> Result<(Tensor, &'static str)> {
    match *scale.dims() {
        [] | [1] | [1, 1] => Ok((scale.reshape(1)?, "tensor")),
        [n] if n == rows => Ok((scale.reshape((n, 1))?, "row")),
        [n, 1] if n == rows => Ok((scale, "row")),
        [n, _] if n == rows.div_ceil(128) => Ok((scale, "block_128x128")),
        _ => bail!("scales {:?} fit no granularity of {rows} rows", scale.dims()),
    }
}

/// One repacking of codes or zero points, into bytes [`shape`].
pub(crate) fn repacked(
    input: &Tensor,
    from: &str,
    shape: [usize; 2],
    zeros: bool,
) -> Result<Tensor> {
    let outputs = [Out::new(DType::U8, shape)];
    let [made] = launch("repack_int4", [Some(In::new(input))], outputs, |views, [mut out], on| {
        let [Some(codes)] = views else { bail!("repack_int4: no codes") };
        if zeros {
            return on.run(
                ops::repack_zeros(codes, &mut out)
                    .from_packing(label(from)?)
                    .to_packing(ops::repack_zeros::ToPacking::Plain),
            );
        }
        on.run(
            ops::repack_int4(codes, &mut out)
                .from_packing(label(from)?)
                .to_packing(ops::repack_int4::ToPacking::PlainUnsigned),
        )
    })?;
    Ok(made.tensor())
}

/// Candle's `VarBuilder` over a checkpoint: weights of quantised layers come decoded, so a model of
/// candle-transformers changes the line that makes its `VarBuilder`.
///
/// # Safety
/// As [`Checkpoint::open`]: nobody may change the files meanwhile.
pub unsafe fn var_builder<P: AsRef<Path>>(
    paths: &[P],
    dtype: DType,
    device: &Device,
) -> Result<candle_nn::VarBuilder<'static>> {
    // SAFETY: the caller's promise.
    let checkpoint = unsafe { Checkpoint::open(paths) }?;
    Ok(checkpoint.into_var_builder(dtype, device))
}

struct Decoded(Checkpoint);

impl candle_nn::var_builder::SimpleBackend for Decoded {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        _: candle_nn::Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let tensor = self.0.float(name, dtype, device)?;
        if tensor.shape() != &shape {
            bail!("{name}: the model wants {shape:?}, the checkpoint has {:?}", tensor.shape());
        }
        Ok(tensor)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        self.0.float(name, dtype, device)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.0.contains(name)
            || name
                .strip_suffix(".weight")
                .is_some_and(|layer| self.0.contains(&format!("{layer}.qweight")))
    }
}

/// A place in a checkpoint, as `VarBuilder` is one in its tensors: for models that keep their layers
/// quantised.
#[derive(Clone)]
pub struct QVarBuilder {
    checkpoint: Arc<Checkpoint>,
    path: Vec<String>,
    dtype: DType,
    device: Device,
}

impl QVarBuilder {
    /// `dtype` is that of tensors which are not quantised.
    ///
    /// # Safety
    /// As [`Checkpoint::open`]: nobody may change the files meanwhile.
    pub unsafe fn open<P: AsRef<Path>>(paths: &[P], dtype: DType, device: &Device) -> Result<Self> {
        // SAFETY: the caller's promise.
        Ok(QVarBuilder::new(unsafe { Checkpoint::open(paths) }?, dtype, device))
    }

    /// The root of a checkpoint's names; `dtype` as for [`QVarBuilder::open`].
    pub fn new(checkpoint: Checkpoint, dtype: DType, device: &Device) -> Self {
        let checkpoint = Arc::new(checkpoint);
        QVarBuilder { checkpoint, path: Vec::new(), dtype, device: device.clone() }
    }

    /// One step further into the names.
    pub fn pp(&self, name: impl ToString) -> Self {
        let mut next = self.clone();
        next.path.push(name.to_string());
        next
    }

    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    fn name(&self, last: &str) -> String {
        let mut parts = self.path.clone();
        if !last.is_empty() {
            parts.push(last.to_string());
        }
        parts.join(".")
    }

    /// A tensor of a shape, decoded if it is a quantised layer's weight.
    pub fn get<S: Into<Shape>>(&self, shape: S, name: &str) -> Result<Tensor> {
        let (shape, name) = (shape.into(), self.name(name));
        let tensor = self.checkpoint.float(&name, self.dtype, &self.device)?;
        if tensor.shape() != &shape {
            bail!("{name}: the model wants {shape:?}, the checkpoint has {:?}", tensor.shape());
        }
        Ok(tensor)
    }

    /// The linear layer at this place, of so many features; it must be quantised.
    pub fn qlinear(&self, in_features: usize, out_features: usize) -> Result<QLinear> {
        let name = self.name("");
        let layer = self.checkpoint.qlinear(&name, &self.device)?;
        if (layer.in_features(), layer.out_features()) != (in_features, out_features) {
            bail!(
                "{name}: the model wants {in_features} features in and {out_features} out, the checkpoint \
                 has {} and {}",
                layer.in_features(),
                layer.out_features()
            );
        }
        Ok(layer)
    }
}

/// The files of a model in a folder or of an index, or the file itself.
pub fn files_of(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let entries = std::fs::read_dir(path).map_err(|error| file_error(path, error))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|file| file.extension().is_some_and(|end| end == "safetensors" || end == "gguf"))
        .collect();
    files.sort();
    if files.is_empty() {
        bail!("{}: no safetensors or GGUF files there", path.display());
    }
    Ok(files)
}
