from __future__ import annotations
class EventSplitter:
    def __init__(self): self._tail=b""
    def feed(self, data):
        data=self._tail+data if self._tail else data
        if data.endswith(b"\n\n"):
            self._tail=b""; return data
        i=data.rfind(b"\n\n")
        if i<0: self._tail=data; return b""
        self._tail=data[i+2:]; return data[:i+2]
class ToolCallTracker:
    def __init__(self, dialect): self.closed=[]
    def concerns(self, events): return False
    def feed(self, events): pass
