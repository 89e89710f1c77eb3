use pestle_sys as sys;
use std::ffi::CStr;

pub type Result<T> = std::result::Result<T, Error>;

/// What kind of failure the library reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// The arguments break the op's contract.
    InvalidArgument,
    /// Within the contract, but no implementation here takes it.
    Unsupported,
    NotCompiled,
    OutOfMemory,
    DeviceError,
    IoError,
    CorruptFile,
    /// A progress function asked to stop.
    Interrupted,
    Internal,
}

impl Status {
    fn of(code: sys::pestle_status) -> Status {
        match code {
            sys::PESTLE_INVALID_ARGUMENT => Status::InvalidArgument,
            sys::PESTLE_UNSUPPORTED => Status::Unsupported,
            sys::PESTLE_NOT_COMPILED => Status::NotCompiled,
            sys::PESTLE_OUT_OF_MEMORY => Status::OutOfMemory,
            sys::PESTLE_DEVICE_ERROR => Status::DeviceError,
            sys::PESTLE_IO_ERROR => Status::IoError,
            sys::PESTLE_CORRUPT_FILE => Status::CorruptFile,
            sys::PESTLE_INTERRUPTED => Status::Interrupted,
            _ => Status::Internal,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call that failed, with the library's sentence.
    #[error("{sentence}")]
    Call { status: Status, sentence: String },
    /// There is no library, or it is too old.
    #[error("{0}")]
    Library(#[from] sys::LoadError),
    /// A shape that its memory does not hold.
    #[error("{0}")]
    View(String),
    /// Text that is not what it should be: a path, a report, an option.
    #[error("{0}")]
    Text(String),
}

impl Error {
    /// The library's verdict, if it was a call that failed.
    pub fn status(&self) -> Option<Status> {
        match self {
            Error::Call { status, .. } => Some(*status),
            _ => None,
        }
    }
}

/// The library's answer as a result, with this thread's last sentence.
pub(crate) fn check(api: &sys::Api, code: sys::pestle_status) -> Result<()> {
    if code == sys::PESTLE_OK {
        return Ok(());
    }
    // SAFETY: never null; valid until this thread's next failure.
    let sentence = unsafe { CStr::from_ptr((api.pestle_last_error)()) };
    Err(Error::Call { status: Status::of(code), sentence: sentence.to_string_lossy().into_owned() })
}
