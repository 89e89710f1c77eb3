//! all-MiniLM-L6-v2 in candle-transformers' BERT: the same sentence is found with f32 weights and with
//! weights that were quantised to int8, NVFP4 and INT4.
//!
//! cargo run --example minilm -- FOLDER, where FOLDER has config.json, vocab.txt and model.safetensors
//! (`tools/demo_model.sh` fetches one).
#![forbid(unsafe_code)]

use candle_core::{DType, Device, Result, Tensor, D};
use candle_transformers::models::bert::{BertModel, Config};
use pestle::files::{quantize_file, quietly};
use pestle_candle::Checkpoint;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

const QUESTIONS: [(&str, usize); 4] = [
    ("How do I make my neural network smaller?", 2),
    ("What should I cook tonight?", 0),
    ("Is it going to rain tomorrow?", 3),
    ("Where can I watch the match?", 1),
];
const ANSWERS: [&str; 4] = [
    "Fry onions, add tomatoes and pasta, and dinner is ready in twenty minutes.",
    "The game is shown live on television and in most sports bars.",
    "Quantising the weights of a model to four bits saves most of its memory.",
    "The forecast says that showers will move in from the west by noon.",
];

/// BERT's WordPiece: lower case, punctuation apart, the longest known piece first.
struct Tokenizer {
    pieces: HashMap<String, u32>,
}

impl Tokenizer {
    fn read(path: &Path) -> Result<Tokenizer> {
        let text = std::fs::read_to_string(path)?;
        Ok(Tokenizer { pieces: text.lines().map(str::to_string).zip(0..).collect() })
    }

    fn piece(&self, piece: &str) -> Option<u32> {
        self.pieces.get(piece).copied()
    }

    fn word(&self, word: &str, tokens: &mut Vec<u32>) -> Option<()> {
        let mut start = 0;
        while start < word.len() {
            let piece = |end: usize| {
                let prefix = if start == 0 { "" } else { "##" };
                self.piece(&format!("{prefix}{}", &word[start..end]))
            };
            let ends = (start + 1..=word.len()).rev().filter(|&end| word.is_char_boundary(end));
            let (end, token) = ends.filter_map(|end| Some((end, piece(end)?))).next()?;
            tokens.push(token);
            start = end;
        }
        Some(())
    }

    fn encode(&self, text: &str) -> Option<Vec<u32>> {
        let mut tokens = vec![self.piece("[CLS]")?];
        let apart: String = text
            .to_lowercase()
            .chars()
            .flat_map(|c| {
                let space = if c.is_alphanumeric() { "" } else { " " };
                format!("{space}{c}{space}").chars().collect::<Vec<_>>()
            })
            .collect();
        for word in apart.split_whitespace() {
            self.word(word, &mut tokens)?;
        }
        tokens.push(self.piece("[SEP]")?);
        Some(tokens)
    }
}

/// Unit vectors of sentences: the mean over their tokens.
fn embed(model: &BertModel, tokenizer: &Tokenizer, sentences: &[&str]) -> Result<Tensor> {
    let rows = sentences.iter().map(|sentence| {
        let Some(tokens) = tokenizer.encode(sentence) else {
            candle_core::bail!("{sentence:?} has letters that the vocabulary lacks");
        };
        let ids = Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?;
        let mean = model.forward(&ids, &ids.zeros_like()?, None)?.mean(1)?;
        mean.broadcast_div(&mean.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?)
    });
    Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 0)
}

/// For each question the answer that is nearest, and how near.
fn nearest(model: &BertModel, tokenizer: &Tokenizer) -> Result<Vec<(usize, f32)>> {
    let questions = embed(model, tokenizer, &QUESTIONS.map(|(question, _)| question))?;
    let answers = embed(model, tokenizer, &ANSWERS)?;
    let similar: Vec<Vec<f32>> = pestle_candle::matmul(&questions, &answers.t()?)?.to_vec2()?;
    let best = |row: Vec<f32>| {
        let better = |a: (usize, f32), b: (usize, f32)| if b.1 > a.1 { b } else { a };
        row.into_iter().enumerate().fold((0, f32::MIN), better)
    };
    Ok(similar.into_iter().map(best).collect())
}

fn load(file: &Path, config: &Config) -> Result<BertModel> {
    // The one line that differs from plain candle-transformers.
    let vb = Checkpoint::read(&[file])?.into_var_builder(DType::F32, &Device::Cpu);
    BertModel::load(vb, config)
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let folder = PathBuf::from(std::env::args().nth(1).ok_or("usage: minilm FOLDER")?);
    let config: Config = serde_json::from_slice(&std::fs::read(folder.join("config.json"))?)?;
    let tokenizer = Tokenizer::read(&folder.join("vocab.txt"))?;
    let source = folder.join("model.safetensors");
    let room = std::env::temp_dir().join(format!("pestle-minilm-{}", std::process::id()));
    std::fs::create_dir_all(&room)?;

    let mut right = true;
    for format in ["f32", "int8-row", "nvfp4", "int4-g32"] {
        let mut file = source.clone();
        if format != "f32" {
            file = room.join(format);
            let options = serde_json::Value::Null;
            quantize_file(&source, &file, format, options, &mut quietly)?;
        }
        let found = nearest(&load(&file, &config)?, &tokenizer)?;
        println!("{format}, {} bytes", std::fs::metadata(&file)?.len());
        for ((question, want), (answer, similarity)) in QUESTIONS.iter().zip(found) {
            let mark = if answer == *want { "" } else { "  <- not the right one" };
            println!("  {similarity:.3} {question} -> {}{mark}", ANSWERS[answer]);
            right &= answer == *want;
        }
    }
    std::fs::remove_dir_all(&room)?;
    if right {
        Ok(())
    } else {
        Err("a quantised model finds another answer".into())
    }
}
