//! Return codes, messages, and the wall that no panic passes.

use cake_rmsnorm::Error;
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What calls return. Whatever is not CAKE_RMSNORM_STATUS_OK has a message:
/// cake_rmsnorm_last_error.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CakeRmsnormStatus {
    /// Done; on a GPU: enqueued.
    Ok = 0,
    /// An argument was refused. Nothing was enqueued or written.
    InvalidArgument = 1,
    /// A kernel that the call needs is not loaded: call cake_rmsnorm_prepare. Nothing was enqueued.
    NotPrepared = 2,
    /// The GPU cannot run the kernels: it is older than compute capability 8.0, or has too little
    /// shared memory.
    UnsupportedDevice = 3,
    /// A GPU was asked for, and this library was built without CUDA.
    NotBuiltWithCuda = 4,
    /// The CUDA driver reported an error.
    Cuda = 5,
    /// A fault of the library.
    Internal = 6,
}

/// Why a call did not do what it was asked for.
pub(crate) struct Failure {
    status: CakeRmsnormStatus,
    message: String,
}

impl Failure {
    pub fn new(status: CakeRmsnormStatus, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
        }
    }

    /// An argument that is not accepted.
    pub fn argument(message: impl Into<String>) -> Self {
        Self::new(CakeRmsnormStatus::InvalidArgument, message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match error {
            Error::NotPrepared { .. } => CakeRmsnormStatus::NotPrepared,
            Error::UnsupportedDevice { .. }
            | Error::SharedMemory { .. }
            | Error::BlockThreads { .. } => CakeRmsnormStatus::UnsupportedDevice,
            Error::Cuda { .. } => CakeRmsnormStatus::Cuda,
            Error::Simulator(_) => CakeRmsnormStatus::Internal,
            _ => CakeRmsnormStatus::InvalidArgument,
        };
        Self::new(status, error.to_string())
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs a call's body: a failure's message is kept for this thread, and a panic becomes a failure.
pub(crate) fn guard(body: impl FnOnce() -> Result<(), Failure>) -> i32 {
    // What a body changes is behind locks that are never held over a panic of theirs, or is the
    // caller's, who learns from the status that it holds nothing.
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return CakeRmsnormStatus::Ok as i32,
        Ok(Err(failure)) => failure,
        Err(payload) => Failure::new(CakeRmsnormStatus::Internal, reason(payload.as_ref())),
    };
    let message = failure.message.replace('\0', " ");
    // A thread that is ending keeps no message.
    let _ = LAST.try_with(|last| {
        if let (Ok(mut last), Ok(message)) = (last.try_borrow_mut(), CString::new(message)) {
            *last = message;
        }
    });
    failure.status as i32
}

fn reason(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    format!(
        "the library failed inside: {}",
        text.unwrap_or("no reason given")
    )
}

/// The message of this thread's last call that failed: it names the argument, what was found, and
/// what is accepted. Never null; empty where no call failed. Valid until this thread's next call
/// that fails.
#[unsafe(no_mangle)]
pub extern "C" fn cake_rmsnorm_last_error() -> *const c_char {
    LAST.try_with(|last| last.try_borrow().map_or(c"".as_ptr(), |last| last.as_ptr()))
        .unwrap_or(c"".as_ptr())
}

/// The name of a status: "ok", "invalid argument", …; "unknown" for a number that is none. A static
/// string.
#[unsafe(no_mangle)]
pub extern "C" fn cake_rmsnorm_status_name(status: i32) -> *const c_char {
    let name = match status {
        0 => c"ok",
        1 => c"invalid argument",
        2 => c"not prepared",
        3 => c"unsupported device",
        4 => c"not built with CUDA",
        5 => c"CUDA error",
        6 => c"internal error",
        _ => c"unknown",
    };
    name.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn last() -> String {
        // SAFETY: a terminated string that stays until this thread's next failure.
        unsafe { CStr::from_ptr(cake_rmsnorm_last_error()) }
            .to_str()
            .expect("UTF-8")
            .to_owned()
    }

    #[test]
    fn panics_become_a_status() {
        for (body, reason) in [
            (
                (|| panic!("on purpose")) as fn() -> Result<(), Failure>,
                "on purpose",
            ),
            (|| panic!("of {} kinds", 2), "of 2 kinds"),
            (|| std::panic::panic_any(7), "no reason given"),
        ] {
            assert_eq!(guard(body), CakeRmsnormStatus::Internal as i32);
            assert_eq!(last(), format!("the library failed inside: {reason}"));
        }
    }

    #[test]
    fn messages_belong_to_their_thread() {
        assert_eq!(guard(|| Err(Failure::argument("here\0there"))), 1);
        std::thread::spawn(|| {
            assert_eq!(last(), "");
            assert_eq!(guard(|| Err(Failure::argument("elsewhere"))), 1);
        })
        .join()
        .expect("a thread");
        assert_eq!(guard(|| Ok(())), 0);
        assert_eq!(last(), "here there");
    }

    #[test]
    fn every_status_has_a_name() {
        let name = |status| {
            // SAFETY: a static, terminated string.
            unsafe { CStr::from_ptr(cake_rmsnorm_status_name(status)) }.to_owned()
        };
        assert_eq!(name(CakeRmsnormStatus::Ok as i32), c"ok".to_owned());
        assert_eq!(
            name(CakeRmsnormStatus::Internal as i32),
            c"internal error".to_owned()
        );
        for status in [-1, 7, i32::MAX, i32::MIN] {
            assert_eq!(name(status), c"unknown".to_owned());
        }
    }
}
